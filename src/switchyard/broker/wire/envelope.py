"""Encode outgoing messages: their properties, and the frames of a publish."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pamqp.encode import field_table

from switchyard.broker.errors import NeverTaken

_MANDATORY = 1
_PERSISTENT = 2
_UNENCODABLE = (ValueError, TypeError, OverflowError, RecursionError, struct.error)
"""Errors of encoding: a name or number is too large, or a header has no AMQP type."""


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

    def properties(self) -> bytes:
        """Return the encoded properties: the flags, then the values of those that are set."""
        flags = CONTENT_TYPE | DELIVERY_MODE | PRIORITY | MESSAGE_ID | TIMESTAMP | TYPE
        headers = b""
        if self.headers:
            flags |= HEADERS
            headers = field_table(self.headers)
        return b"".join(
            (
                struct.pack(">H", flags),
                _short_string(self.content_type),
                headers,
                bytes((_PERSISTENT, self.priority)),
                _short_string(self.message_id),
                struct.pack(">Q", self.timestamp),
                _short_string(self.type),
            )
        )


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A message that is passed on with whatever properties it came with, without the name of the
    user who published it: the broker takes that name from this user alone."""

    body: bytes
    message_id: str
    encoded: bytes
    """Its properties, flags first, as in `Incoming.properties`."""

    def properties(self) -> bytes:
        return _without_user_id(self.encoded)


def _without_user_id(encoded: bytes) -> bytes:
    flags = int.from_bytes(encoded[:2], "big")
    if not flags & USER_ID:
        return encoded
    start = 2
    for flag, size in _BEFORE_USER_ID.items():
        if flags & flag:
            start += size(encoded, start)
    end = start + _size_of_short_string(encoded, start)
    return struct.pack(">H", flags & ~USER_ID) + encoded[2:start] + encoded[end:]


def _size_of_short_string(encoded: bytes, at: int) -> int:
    return 1 + encoded[at]


def _size_of_table(encoded: bytes, at: int) -> int:
    return 4 + int.from_bytes(encoded[at : at + 4], "big")


def _short_string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise ValueError(f"AMQP takes at most 255 bytes here, this has {len(data)}: {text[:40]}…")
    return bytes((len(data),)) + data


def encode_head(
    exchange: str,
    routing_key: str,
    envelope: Envelope | Forwarded,
    frame_max: int,
    *,
    mandatory: bool = True,
) -> tuple[bytes, bytes]:
    """Encode a publish without its body: the payloads of its method frame and its header frame.

    Raises NeverTaken when a name, id or header does not fit into AMQP: names and ids have at most
    255 bytes, all properties together one frame. Sent nevertheless, the broker would close
    the connection.
    """
    try:
        method = struct.pack(">HHH", BASIC, PUBLISH, 0)
        method += _short_string(exchange) + _short_string(routing_key)
        method += bytes((_MANDATORY if mandatory else 0,))
        header = struct.pack(">HHQ", BASIC, 0, len(envelope.body)) + envelope.properties()
    except _UNENCODABLE as error:
        raise NeverTaken(f"the message does not fit into AMQP: {error}") from error
    if len(header) > frame_max - FRAME_OVERHEAD:
        raise NeverTaken(
            f"the message does not fit into AMQP: its properties have {len(header):,} bytes, and "
            f"one frame of this broker carries {frame_max - FRAME_OVERHEAD:,}"
        )
    return method, header


def encode_publish(
    channel: int,
    exchange: str,
    routing_key: str,
    envelope: Envelope | Forwarded,
    frame_max: int,
    *,
    mandatory: bool = True,
) -> bytes:
    """Return the frames of one persistent basic.publish, ready to be written.

    Raises NeverTaken when a name, id or header does not fit into AMQP.
    """
    method, header = encode_head(exchange, routing_key, envelope, frame_max, mandatory=mandatory)
    body = envelope.body
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


METHOD, HEADER, BODY = 1, 2, 3
"""Kinds of frame."""
FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
"""Bytes of a frame around its payload."""

BASIC = 60
"""AMQP class of the methods for single messages, which are:"""
PUBLISH, RETURN, DELIVER, ACK, NACK = 40, 50, 60, 80, 120

# Flags of a message's properties, in the order in which the values are encoded.
CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 1 << 11, 1 << 10, 1 << 9, 1 << 8
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID = 1 << 7, 1 << 6, 1 << 5, 1 << 4
_BEFORE_USER_ID: Mapping[int, Callable[[bytes, int], int]] = {
    **dict.fromkeys((CONTENT_TYPE, CONTENT_ENCODING), _size_of_short_string),
    HEADERS: _size_of_table,
    **dict.fromkeys((DELIVERY_MODE, PRIORITY), lambda _, at: 1),
    **dict.fromkeys((CORRELATION_ID, REPLY_TO, EXPIRATION, MESSAGE_ID), _size_of_short_string),
    TIMESTAMP: lambda _, at: 8,
    TYPE: _size_of_short_string,
}
"""By flag, in their order, what tells the size of a value that comes before the user's name."""
