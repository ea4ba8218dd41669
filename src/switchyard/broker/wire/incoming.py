"""Assemble incoming messages from the frames of one channel.

Whatever a publisher has written, the result is a message that can be settled. If its properties
can't be read, the message carries the reason and their bytes, and its receiver decides what to do.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from switchyard.broker.wire.envelope import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVER,
    DELIVERY_MODE,
    EXPIRATION,
    HEADER,
    HEADERS,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
)
from switchyard.broker.wire.field_table import UnreadableTable, read_table

_size_and_flags = struct.Struct(">QH").unpack_from
_tag_and_bit = struct.Struct(">QB").unpack_from


@dataclass(slots=True)
class Incoming:
    """A message that the broker has delivered, or returned as unroutable."""

    exchange: str
    routing_key: str
    consumer_tag: str = ""
    """Empty for a returned message."""
    delivery_tag: int = 0
    redelivered: bool = False
    priority: int = 0
    message_id: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    unreadable: str = ""
    """Why its properties could not be read; empty where they could."""
    properties: bytes = b""
    """All properties as they came, flags first, with those that are not parsed."""


class Assembler:
    """Puts the frames of one message together."""

    def __init__(self) -> None:
        self._message: Incoming | None = None
        self._missing = -1
        """Bytes of the body still to come; -1 before the header."""
        self._pieces: list[bytes] = []

    @property
    def is_busy(self) -> bool:
        """Whether a message is under way: the next frames of the channel belong to it."""
        return self._message is not None

    def start(self, method: int, frame: memoryview) -> None:
        """Begin a message by its basic.deliver or basic.return; `frame` starts with class and
        method."""
        raw = bytes(frame)
        if method == DELIVER:
            consumer_tag, at = _read_short_string(raw, 4)
            delivery_tag, redelivered = _tag_and_bit(raw, at)
            exchange, at = _read_short_string(raw, at + 9)
            routing_key, _ = _read_short_string(raw, at)
            self._message = Incoming(
                exchange, routing_key, consumer_tag, delivery_tag, bool(redelivered)
            )
        else:
            _, at = _read_short_string(raw, 6)  # behind the reply code: the reply text
            exchange, at = _read_short_string(raw, at)
            routing_key, _ = _read_short_string(raw, at)
            self._message = Incoming(exchange, routing_key)

    def add(self, kind: int, frame: memoryview) -> Incoming | None:
        """Add a header or body frame; return the message once it is complete."""
        message = self._message
        if message is None:
            return None
        if kind == HEADER:
            raw = bytes(frame)
            self._missing, flags = _size_and_flags(raw, 4)
            message.properties = raw[12:]
            try:
                _read_properties(message, flags, raw, 14)
            except (UnreadableTable, IndexError, struct.error) as error:
                message.unreadable = str(error) or "the properties are cut off"
        else:
            self._pieces.append(bytes(frame))
            self._missing -= len(frame)
        if self._missing > 0:
            return None
        pieces = self._pieces
        message.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._message, self._pieces, self._missing = None, [], -1
        return message


def _read_properties(message: Incoming, flags: int, raw: bytes, at: int) -> None:
    """Read the properties that this system uses; those after the message id are not parsed."""
    if flags & CONTENT_TYPE:
        at += 1 + raw[at]
    if flags & CONTENT_ENCODING:
        at += 1 + raw[at]
    if flags & HEADERS:
        message.headers, at = read_table(raw, at)
    if flags & DELIVERY_MODE:
        at += 1
    if flags & PRIORITY:
        message.priority = raw[at]
        at += 1
    for skipped in (CORRELATION_ID, REPLY_TO, EXPIRATION):
        if flags & skipped:
            at += 1 + raw[at]
    if flags & MESSAGE_ID:
        message.message_id, _ = _read_short_string(raw, at)


def _read_short_string(raw: bytes, at: int) -> tuple[str, int]:
    """Return a short string, and the offset of the next value.

    Bytes that are no UTF-8 become question marks, one for each, so that the text does not grow: a
    name or id that came in must fit where it is sent again, into 255 bytes.
    """
    end = at + 1 + raw[at]
    data = raw[at + 1 : end]
    try:
        return str(data, "utf-8"), end
    except UnicodeDecodeError:
        return str(data, "utf-8", "replace").replace("\ufffd", "?"), end
