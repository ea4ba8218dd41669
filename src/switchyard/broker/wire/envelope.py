"""A message as it leaves: its properties, and the frames of its publish."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from pamqp.encode import field_table

from switchyard.broker.wire.frames import (
    BASIC,
    BODY,
    CONTENT_TYPE,
    DELIVERY_MODE,
    FRAME_END,
    FRAME_OVERHEAD,
    HEADER,
    HEADERS,
    MESSAGE_ID,
    METHOD,
    PRIORITY,
    PUBLISH,
    TIMESTAMP,
    TYPE,
)

_MANDATORY = 1
_PERSISTENT = 2


@dataclass(frozen=True, slots=True)
class Envelope:
    """A body with the AMQP properties that this system sets. Always persistent."""

    body: bytes
    message_id: str
    type: str = ""
    priority: int = 0
    """0 to 10; 255 at most on the wire."""
    timestamp: int = 0
    """Seconds since the epoch."""
    headers: dict[str, Any] | None = None
    content_type: str = "application/json"


def _short_string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"AMQP takes at most 255 bytes here, this has {len(data)}: {text[:40]}…")
    return bytes((len(data),)) + data


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    envelope: Envelope,
    frame_max: int,
    *,
    mandatory: bool = True,
) -> bytes:
    """The frames of one persistent basic.publish, ready to be written.

    Raises ValueError when a name or id is longer than AMQP allows (255 bytes).
    """
    method = struct.pack(">HHH", BASIC, PUBLISH, 0)
    method += _short_string(exchange) + _short_string(routing_key)
    method += bytes((_MANDATORY if mandatory else 0,))
    flags = CONTENT_TYPE | DELIVERY_MODE | PRIORITY | MESSAGE_ID | TIMESTAMP | TYPE
    headers = b""
    if envelope.headers:
        flags |= HEADERS
        headers = field_table(envelope.headers)
    body = envelope.body
    header = b"".join(
        (
            struct.pack(">HHQH", BASIC, 0, len(body), flags),
            _short_string(envelope.content_type),
            headers,
            bytes((_PERSISTENT, envelope.priority)),
            _short_string(envelope.message_id),
            struct.pack(">Q", envelope.timestamp),
            _short_string(envelope.type),
        )
    )
    if len(header) > frame_max - FRAME_OVERHEAD:
        raise ValueError(f"the headers have {len(header)} bytes, more than one frame can carry")
    parts = [
        struct.pack(">BHI", METHOD, channel, len(method)),
        method,
        FRAME_END,
        struct.pack(">BHI", HEADER, channel, len(header)),
        header,
        FRAME_END,
    ]
    step = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), step):
        piece = body[start : start + step]
        parts += (struct.pack(">BHI", BODY, channel, len(piece)), piece, FRAME_END)
    return b"".join(parts)
