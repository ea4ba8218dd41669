"""An AMQP channel for many small messages: pipelined publishes, acks and plain callbacks.

aiormq keeps the protocol (handshake, heartbeats, RPCs, frame parsing). This channel replaces
its three per-message paths, which take a lock, a task and a drain each:

- a publish is encoded by hand and answered by one future (aiormq: 75-100 µs, here about 10 µs);
- a delivery is handed to a plain function, without a task;
- everything written in one turn of the event loop leaves as one write.

It stands on `_on_deliver_frame`, `_on_return_frame` and `_on_confirm_frame` of aiormq 7.2, which
is why that version is pinned; tests/integration/test_wire.py proves each of them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiormq.abc import ChannelFrame, DeliveredMessage
from aiormq.channel import Channel
from aiormq.connection import Connection
from aiormq.exceptions import InvalidFrameError
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.encode import field_table
from pamqp.header import ContentHeader

from broker.errors import BrokerAway, PublishError, Refused, Unroutable

_METHOD, _HEADER, _BODY, _FRAME_END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH, _ACK, _NACK = 60, 40, 80, 120
_MANDATORY = 1
_REQUEUE = 2
_FRAME_OVERHEAD = 8
# Property flags, most significant first, in the order in which the values are encoded.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _PRIORITY = 1 << 15, 1 << 13, 1 << 12, 1 << 11
_MESSAGE_ID, _TIMESTAMP, _TYPE = 1 << 7, 1 << 6, 1 << 5
_PERSISTENT = 2
_ack_frame = struct.Struct(">BHIHHQBc").pack

DeliveryCallback = Callable[[DeliveredMessage], None]


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
    method = struct.pack(">HHH", _BASIC, _PUBLISH, 0)
    method += _short_string(exchange) + _short_string(routing_key)
    method += bytes((_MANDATORY if mandatory else 0,))
    flags = _CONTENT_TYPE | _DELIVERY_MODE | _PRIORITY | _MESSAGE_ID | _TIMESTAMP | _TYPE
    headers = b""
    if envelope.headers:
        flags |= _HEADERS
        headers = field_table(envelope.headers)
    body = envelope.body
    header = b"".join(
        (
            struct.pack(">HHQH", _BASIC, 0, len(body), flags),
            _short_string(envelope.content_type),
            headers,
            bytes((_PERSISTENT, envelope.priority)),
            _short_string(envelope.message_id),
            struct.pack(">Q", envelope.timestamp),
            _short_string(envelope.type),
        )
    )
    if len(header) > frame_max - _FRAME_OVERHEAD:
        raise ValueError(f"the headers have {len(header)} bytes, more than one frame can carry")
    parts = [
        struct.pack(">BHI", _METHOD, channel, len(method)),
        method,
        _FRAME_END,
        struct.pack(">BHI", _HEADER, channel, len(header)),
        header,
        _FRAME_END,
    ]
    step = frame_max - _FRAME_OVERHEAD
    for start in range(0, len(body), step):
        piece = body[start : start + step]
        parts += (struct.pack(">BHI", _BODY, channel, len(piece)), piece, _FRAME_END)
    return b"".join(parts)


class PipelinedChannel(Channel):
    """A channel whose publishes and settlements never wait; see the module's text.

    Do not mix it with aiormq's own `basic_publish`: both count delivery tags.
    """

    def __init__(self, connector: Connection, number: int, *, publisher_confirms: bool) -> None:
        super().__init__(
            connector, number, publisher_confirms=publisher_confirms, on_return_raises=False
        )
        self._outgoing: list[bytes] = []
        self._unconfirmed: dict[int, tuple[asyncio.Future[None], tuple[str, str, str]]] = {}
        self._returned: set[tuple[str, str, str]] = set()
        self._room: asyncio.Future[None] | None = None
        self._room_at = 0
        self._callbacks: dict[str, DeliveryCallback] = {}
        self.closed: asyncio.Future[None] = self.loop.create_future()
        """Done as soon as the channel or its connection is gone; never fails."""
        self._closing.add_done_callback(self._on_closed)

    # --- publishing -------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return len(self._unconfirmed)

    def publish(
        self, exchange: str, routing_key: str, envelope: Envelope, *, mandatory: bool = True
    ) -> asyncio.Future[None]:
        """Send one persistent message; the future ends with its confirm.

        The future fails with Unroutable, Refused (nack) or BrokerAway. Raises BrokerAway at once
        when the channel is closed, ValueError when the message does not fit into AMQP.
        """
        if self.closed.done():
            raise BrokerAway("the channel is closed", maybe_accepted=False)
        frames = encode_publish(
            self.number,
            exchange,
            routing_key,
            envelope,
            self.connection.connection_tune.frame_max,
            mandatory=mandatory,
        )
        self.delivery_tag += 1
        confirm: asyncio.Future[None] = self.loop.create_future()
        key = (envelope.message_id, exchange, routing_key)
        self._unconfirmed[self.delivery_tag] = (confirm, key)
        self._write(frames)
        return confirm

    async def room(self, window: int) -> None:
        """Wait until fewer than `window` publishes are unconfirmed.

        Wakes at half the window, so that publishes leave in groups and not one by one.
        """
        while len(self._unconfirmed) >= window and not self.closed.done():
            if self._room is None or self._room.done():
                self._room = self.loop.create_future()
                self._room_at = max(window // 2, 1)
            await asyncio.shield(self._room)

    async def _on_return_frame(self, frame: spec.Basic.Return) -> None:
        message = await self._read_message(frame)
        self._returned.add(
            (
                message.header.properties.message_id or "",
                frame.exchange or "",
                frame.routing_key or "",
            )
        )

    async def _on_confirm_frame(self, frame: Any) -> None:
        waiting = self._unconfirmed
        accepted = isinstance(frame, spec.Basic.Ack)
        tag = frame.delivery_tag
        if getattr(frame, "multiple", False):
            # Insertion order is tag order, so the confirmed ones are at the front.
            for oldest in list(waiting):
                if oldest > tag:
                    break
                self._settle(*waiting.pop(oldest), accepted)
        elif tag in waiting:
            self._settle(*waiting.pop(tag), accepted)
        room = self._room
        if room is not None and not room.done() and len(waiting) <= self._room_at:
            room.set_result(None)

    def _settle(
        self, confirm: asyncio.Future[None], key: tuple[str, str, str], accepted: bool
    ) -> None:
        error: PublishError | None = None
        if key in self._returned:
            self._returned.discard(key)
            error = Unroutable(key[1], key[2])
        elif not accepted:
            error = Refused(f"the broker refused {key[2]!r} (nack)")
        if confirm.done():  # the publisher gave up waiting
            return
        if error is None:
            confirm.set_result(None)
        else:
            confirm.set_exception(error)

    # --- consuming --------------------------------------------------------------------------

    async def consume(
        self, queue: str, tag: str, callback: DeliveryCallback, *, priority: int = 0
    ) -> None:
        """Start a consumer; `callback` is called for each delivery and must not block.

        Raises aiormq's channel errors (the queue is missing, or an exclusive one is in use).
        """
        self._callbacks[tag] = callback
        # aiormq looks here to know whether a broker's basic.cancel concerns this channel.
        self.consumers[tag] = callback  # type: ignore[assignment]
        await self.rpc(
            spec.Basic.Consume(queue=queue, consumer_tag=tag, arguments={"x-priority": priority})
        )

    async def cancel(self, tag: str) -> None:
        """Stop a consumer. Deliveries that are under way still reach its callback."""
        await self.basic_cancel(tag)
        self._callbacks.pop(tag, None)

    async def _on_deliver_frame(self, frame: spec.Basic.Deliver) -> None:
        message = await self._read_message(frame)
        callback = self._callbacks.get(frame.consumer_tag or "")
        if callback is not None:
            callback(message)

    async def _read_message(
        self, frame: spec.Basic.Deliver | spec.Basic.Return
    ) -> DeliveredMessage:
        header = await self._get_frame()
        if not isinstance(header, ContentHeader):
            raise InvalidFrameError(header)
        pieces: list[bytes] = []
        missing = header.body_size
        while missing > 0:
            piece = await self._get_frame()
            if not isinstance(piece, ContentBody):
                raise InvalidFrameError(piece)
            pieces.append(piece.value)
            missing -= len(piece.value)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return DeliveredMessage(delivery=frame, header=header, body=body, channel=self)

    def ack(self, delivery_tag: int) -> bool:
        """Acknowledge. False when the channel is closed: the broker delivers it again."""
        return self._settle_delivery(_ACK, delivery_tag, 0, 13)

    def requeue(self, delivery_tag: int) -> bool:
        """Give a delivery back to its queue. False when the channel is closed already."""
        return self._settle_delivery(_NACK, delivery_tag, _REQUEUE, 13)

    def _settle_delivery(self, method: int, delivery_tag: int, bits: int, length: int) -> bool:
        if self.closed.done():
            return False
        self._write(
            _ack_frame(_METHOD, self.number, length, _BASIC, method, delivery_tag, bits, _FRAME_END)
        )
        return True

    # --- writing ----------------------------------------------------------------------------

    def _write(self, frames: bytes) -> None:
        self._outgoing.append(frames)
        if len(self._outgoing) == 1:
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        payload = b"".join(self._outgoing)
        self._outgoing.clear()
        if not payload or self.closed.done():
            return
        frame = ChannelFrame(payload=payload, should_close=False)
        try:
            self.write_queue.put_nowait(frame)
        except asyncio.QueueFull:
            self.create_task(self.write_queue.put(frame))

    def _on_closed(self, _: asyncio.Future[Any]) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        for confirm, key in self._unconfirmed.values():
            if not confirm.done():
                confirm.set_exception(
                    BrokerAway(
                        f"the connection was lost before {key[2]!r} was confirmed",
                        maybe_accepted=True,
                    )
                )
                confirm.exception()  # a publisher that has given up must not cause a warning
        self._unconfirmed.clear()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def open_channel(connection: Connection, *, confirms: bool) -> PipelinedChannel:
    """Open such a channel on an aiormq connection, with publisher confirms or without."""
    async with connection.last_channel_lock:
        number = max(connection.channels, default=0) + 1
        channel = PipelinedChannel(connection, number, publisher_confirms=confirms)
        connection.channels[number] = channel
    await channel.open()
    return channel
