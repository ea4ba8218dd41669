"""An AMQP channel for many small messages: pipelined publishes, acks and plain callbacks.

aiormq keeps the protocol: handshake, heartbeats, calls and their answers, closing. This channel
replaces its per-message paths, which take locks, tasks and drains:

- a publish is encoded by hand and answered by one future (aiormq: 75-100 µs, here about 10 µs);
- deliveries and confirms come from `broker.frame_tap`, and go to plain functions, without a task
  (aiormq: 40 µs a message, here about 10 µs);
- everything written in one turn of the event loop leaves as one write.

It stands on inner parts of aiormq 7.2, which is why that version is pinned;
tests/integration/test_wire.py proves each of them.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection
from pamqp import commands as spec
from pamqp.encode import field_table
from structlog.typing import FilteringBoundLogger

from switchyard.broker.away import library_calls
from switchyard.broker.errors import BrokerAway, PublishError, Refused, Unroutable
from switchyard.broker.frame_tap import tap_of
from switchyard.broker.incoming import (
    BASIC,
    DELIVER,
    METHOD,
    RETURN,
    Assembler,
    Incoming,
)

_METHOD, _HEADER, _BODY, _FRAME_END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH, _ACK, _NACK = 60, 40, 80, 120
_MANDATORY = 1
_MULTIPLE = 1
_REQUEUE = 2
_FRAME_OVERHEAD = 8
# Property flags, most significant first, in the order in which the values are encoded.
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _PRIORITY = 1 << 15, 1 << 13, 1 << 12, 1 << 11
_MESSAGE_ID, _TIMESTAMP, _TYPE = 1 << 7, 1 << 6, 1 << 5
_PERSISTENT = 2
_ack_frame = struct.Struct(">BHIHHQBc").pack
_FLUSH_AGAIN = 0.001
"""Seconds until the next try to hand frames to a writer that is behind."""

_class_and_method = struct.Struct(">HH").unpack_from
_tag_and_bits = struct.Struct(">QB").unpack_from

DeliveryCallback = Callable[[Incoming], None]
W = TypeVar("W")
_Key = tuple[str, str, str]
"""Message id, exchange and routing key: all that a returned message says of itself."""


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


class Unconfirmed(Generic[W]):
    """The publishes of one channel that wait for their confirm, and what ends each of them.

    `W` is whatever waits. Both publishers decide here what a return, an ack, a nack and the end
    of the channel mean; how frames arrive is theirs.
    """

    def __init__(self) -> None:
        self._last_tag = 0
        self._waiting: dict[int, tuple[W, _Key]] = {}
        # Counted: one job sent twice can come back twice before either is confirmed.
        self._returned: Counter[_Key] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def sent(self, waiter: W, message_id: str, exchange: str, routing_key: str) -> None:
        """The next publish has left. The broker counts them too, from 1: that is its tag."""
        self._last_tag += 1
        self._waiting[self._last_tag] = (waiter, (message_id, exchange, routing_key))

    def returned(self, message_id: str, exchange: str, routing_key: str) -> None:
        """basic.return: no queue took it. It comes before the confirm, without a tag."""
        self._returned[message_id, exchange, routing_key] += 1

    def confirmed(
        self, tag: int, *, multiple: bool, accepted: bool
    ) -> list[tuple[W, PublishError | None]]:
        """basic.ack or basic.nack: who waits no longer, and the error if there is one.

        `multiple` means every tag up to this one.
        """
        tags = [tag]
        if multiple:
            # Insertion order is tag order, so these are at the front.
            tags = []
            for waiting in self._waiting:
                if waiting > tag:
                    break
                tags.append(waiting)
        fine = accepted and not self._returned
        return [
            (ended[0], None if fine else self._error(ended[1], accepted))
            for each in tags
            if (ended := self._waiting.pop(each, None)) is not None
        ]

    def lost(self, reason: str) -> list[tuple[W, PublishError | None]]:
        """The channel or its connection is gone: all that waited, and each one's error."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._returned.clear()
        return [(waiter, _loss(reason, key[1], key[2])) for waiter, key in waiting]

    def _error(self, key: _Key, accepted: bool) -> PublishError | None:
        if key in self._returned:
            self._returned[key] -= 1
            self._returned += Counter()  # drops what is at zero
            return Unroutable(key[1], key[2])
        if not accepted:
            return Refused(f"the broker refused {key[2]!r} (nack)")
        return None


def _loss(reason: str, exchange: str, routing_key: str) -> PublishError:
    # The broker closes the channel of whoever publishes to an exchange that is not there.
    if f"no exchange '{exchange}'" in reason:
        return Unroutable(exchange, routing_key)
    return BrokerAway(
        f"the connection was lost before {routing_key!r} was confirmed: {reason}",
        maybe_accepted=True,
    )


class PipelinedChannel(Channel):
    """A channel whose publishes and settlements never wait; see the module's text.

    Do not mix it with aiormq's own `basic_publish`: both count delivery tags.
    """

    def __init__(self, connector: Connection, number: int, *, publisher_confirms: bool) -> None:
        super().__init__(
            connector, number, publisher_confirms=publisher_confirms, on_return_raises=False
        )
        self._outgoing: list[bytes] = []
        self._unconfirmed: Unconfirmed[asyncio.Future[None]] = Unconfirmed()
        self._room: asyncio.Future[None] | None = None
        self._room_at = 0
        self._callbacks: dict[str, DeliveryCallback] = {}
        self._assembler = Assembler()
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
        confirm: asyncio.Future[None] = self.loop.create_future()
        self._unconfirmed.sent(confirm, envelope.message_id, exchange, routing_key)
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

    def _confirmed(self, frame: memoryview, *, accepted: bool) -> None:
        tag, bits = _tag_and_bits(frame, 4)
        for confirm, error in self._unconfirmed.confirmed(
            tag, multiple=bool(bits & 1), accepted=accepted
        ):
            _settle(confirm, error)
        room = self._room
        if room is not None and not room.done() and len(self._unconfirmed) <= self._room_at:
            room.set_result(None)

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

    def take(self, kind: int, frame: memoryview) -> bool:
        """A frame of this channel, before aiormq reads it; see FrameSink."""
        assembler = self._assembler
        if kind != METHOD:
            if not assembler.is_busy:
                return False  # the answer to a basic.get
            message = assembler.add(kind, frame)
            if message is not None:
                self._arrived(message)
            return True
        class_id, method = _class_and_method(frame)
        if class_id != BASIC:
            return False
        if method in (DELIVER, RETURN):
            assembler.start(method, frame)
        elif method in (_ACK, _NACK):
            self._confirmed(frame, accepted=method == _ACK)
        else:
            return False
        return True

    def _arrived(self, message: Incoming) -> None:
        if message.consumer_tag:
            callback = self._callbacks.get(message.consumer_tag)
            if callback is None:
                return
            try:
                callback(message)
            except Exception:
                # A defect of that consumer. Further up it would end the connection, and with it
                # the process, which would get the same message again at its next start.
                _log().exception("a delivery could not be taken", consumer=message.consumer_tag)
        else:
            self._unconfirmed.returned(message.message_id, message.exchange, message.routing_key)

    def ack(self, delivery_tag: int) -> bool:
        """Acknowledge. False when the channel is closed: the broker delivers it again."""
        return self._settle_delivery(_ACK, delivery_tag, 0, 13)

    def requeue(self, delivery_tag: int, *, multiple: bool = False) -> bool:
        """Give a delivery back to its queue, with `multiple` all before it, too. False when the
        channel is closed already."""
        bits = _REQUEUE | _MULTIPLE if multiple else _REQUEUE
        return self._settle_delivery(_NACK, delivery_tag, bits, 13)

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
        if self.closed.done():
            self._outgoing.clear()
            return
        frame = ChannelFrame(payload=b"".join(self._outgoing), should_close=False)
        try:
            self.write_queue.put_nowait(frame)
        except asyncio.QueueFull:
            # What is written until then joins in behind: the broker numbers publishes in the
            # order in which they reach it.
            self.loop.call_later(_FLUSH_AGAIN, self._flush)
        else:
            self._outgoing.clear()

    # --- the end ----------------------------------------------------------------------------

    async def rpc(self, frame: Any, timeout: Any = None) -> Any:
        """As aiormq's. Raises one of CHANNEL_ERRORS, whatever ends the connection meanwhile."""
        with library_calls():
            return await super().rpc(frame, timeout)

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        for confirm, error in self._unconfirmed.lost(_reason(closing)):
            _settle(confirm, error)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


def _log() -> FilteringBoundLogger:
    logger: FilteringBoundLogger = structlog.get_logger("wire")
    return logger


def _settle(confirm: asyncio.Future[None], error: PublishError | None) -> None:
    if confirm.done():  # the publisher gave up waiting
        return
    if error is None:
        confirm.set_result(None)
    else:
        confirm.set_exception(error)
        confirm.exception()  # a publisher that gave up must not cause a warning


def _reason(closing: asyncio.Future[Any]) -> str:
    error = None if closing.cancelled() else closing.exception()
    return (str(error) if error else "") or "it was closed"


async def open_channel(connection: Connection, *, confirms: bool) -> PipelinedChannel:
    """Open such a channel on an aiormq connection, with publisher confirms or without.

    Raises one of CHANNEL_ERRORS.
    """
    with library_calls():
        async with connection.last_channel_lock:
            number = max(connection.channels, default=0) + 1
            channel = PipelinedChannel(connection, number, publisher_confirms=confirms)
            connection.channels[number] = channel
            tap = tap_of(connection)
            tap.attach(number, channel)
            channel.closed.add_done_callback(lambda _: tap.detach(number, channel))
        await channel.open()
    return channel
