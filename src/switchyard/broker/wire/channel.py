"""An AMQP channel for many small messages: pipelined publishes, acks and plain callbacks.

aiormq keeps the protocol: handshake, heartbeats, calls and their answers, closing. This channel
replaces its code for single messages, which takes locks, tasks and drains:

- a publish is encoded by hand and answered by one future (aiormq: 75-100 µs, here about 10 µs);
- deliveries and confirms come from `broker.wire.frame_tap`, and go to plain functions, without a
  task (aiormq: 40 µs a message, here about 10 µs);
- everything written in one turn of the event loop leaves as one write.

It relies on private parts of aiormq 7.2, which is why that version is pinned;
tests/integration/test_wire.py tests each of them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import structlog
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.connection import Connection
from pamqp import commands as spec
from structlog.typing import FilteringBoundLogger

from switchyard.broker.errors import BrokerUnavailable, PublishError
from switchyard.broker.wire.confirms import UnconfirmedPublishes
from switchyard.broker.wire.envelope import (
    ACK,
    BASIC,
    DELIVER,
    FRAME_END,
    METHOD,
    NACK,
    RETURN,
    Envelope,
    Forwarded,
    encode_publish,
)
from switchyard.broker.wire.failures import ANSWER_TIMEOUT, library_calls, time_limit
from switchyard.broker.wire.frame_tap import tap_of
from switchyard.broker.wire.incoming import Assembler, Incoming

_MULTIPLE = 1
_REQUEUE = 2
_ack_frame = struct.Struct(">BHIHHQBc").pack
_FLUSH_RETRY_INTERVAL = 0.001
"""Seconds until frames are offered again to a writer whose queue is full."""
_CUT_TIMEOUT = 1.0
"""Seconds to wait for aiormq to notice that its connection was cut."""
_class_and_method = struct.Struct(">HH").unpack_from
_tag_and_bits = struct.Struct(">QB").unpack_from
DeliveryCallback = Callable[[Incoming], None]


class PipelinedChannel(Channel):
    """A channel whose publishes and settlements never wait; see the module's docstring.

    Do not mix it with aiormq's own `basic_publish`: both count delivery tags.
    """

    def __init__(self, connector: Connection, number: int, *, publisher_confirms: bool) -> None:
        super().__init__(
            connector, number, publisher_confirms=publisher_confirms, on_return_raises=False
        )
        self._outgoing: list[bytes] = []
        self._unconfirmed: UnconfirmedPublishes[asyncio.Future[None]] = UnconfirmedPublishes()
        self._window_waiter: asyncio.Future[None] | None = None
        self._wake_at = 0
        self._callbacks: dict[str, DeliveryCallback] = {}
        self._assembler = Assembler()
        self.closed: asyncio.Future[str] = self.loop.create_future()
        """Done, with the reason, as soon as the channel or its connection is gone; never fails."""
        self.was_opened = False
        """Whether the broker has opened the channel."""
        self._closing.add_done_callback(self._on_closed)

    # --- publishing -------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> int:
        """Publishes that wait for their confirm."""
        return len(self._unconfirmed)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        envelope: Envelope | Forwarded,
        *,
        mandatory: bool = True,
    ) -> asyncio.Future[None]:
        """Send one persistent message; the future ends with its confirm.

        The future fails with Unroutable, Refused (nack), NeverTaken, NotPermitted, or
        BrokerUnavailable. Raises BrokerUnavailable at once when the channel is closed, NeverTaken
        when the message does not fit into AMQP.
        """
        if self.closed.done():
            raise BrokerUnavailable("the channel is closed", maybe_accepted=False)
        frames = encode_publish(
            self.number,
            exchange,
            routing_key,
            envelope,
            self.connection.connection_tune.frame_max,
            mandatory=mandatory,
        )
        confirm: asyncio.Future[None] = self.loop.create_future()
        size = len(envelope.body)
        self._unconfirmed.add(confirm, envelope.message_id, exchange, routing_key, size)
        self._write(frames)
        return confirm

    async def wait_for_window(self, window: int) -> None:
        """Wait until fewer than `window` publishes are unconfirmed.

        Wakes at half the window, so that publishes leave in groups and not one by one.
        """
        while len(self._unconfirmed) >= window and not self.closed.done():
            if self._window_waiter is None or self._window_waiter.done():
                self._window_waiter = self.loop.create_future()
                self._wake_at = max(window // 2, 1)
            await asyncio.shield(self._window_waiter)

    def _on_confirm(self, frame: memoryview, *, accepted: bool) -> None:
        tag, bits = _tag_and_bits(frame, 4)
        for confirm, error in self._unconfirmed.pop_confirmed(
            tag, multiple=bool(bits & 1), accepted=accepted
        ):
            _settle_confirm(confirm, error)
        waiter = self._window_waiter
        if waiter is not None and not waiter.done() and len(self._unconfirmed) <= self._wake_at:
            waiter.set_result(None)

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

    def take_frame(self, kind: int, frame: memoryview) -> bool:
        """Take a frame of this channel before aiormq reads it; see FrameSink."""
        assembler = self._assembler
        if kind != METHOD:
            if not assembler.is_busy:
                return False  # the answer to a basic.get
            message = assembler.add(kind, frame)
            if message is not None:
                self._on_message(message)
            return True
        class_id, method = _class_and_method(frame)
        if class_id != BASIC:
            return False
        if method in (DELIVER, RETURN):
            assembler.start(method, frame)
        elif method in (ACK, NACK):
            self._on_confirm(frame, accepted=method == ACK)
        else:
            return False
        return True

    def _on_message(self, message: Incoming) -> None:
        if message.consumer_tag:
            callback = self._callbacks.get(message.consumer_tag)
            if callback is None:
                return
            try:
                callback(message)
            except Exception:
                # A defect of that consumer. Raised further, it would end the connection, and with
                # it the process, which would get the same message again at its next start.
                _log().exception("a delivery could not be taken", consumer=message.consumer_tag)
        else:
            self._unconfirmed.note_return(message.message_id, message.exchange, message.routing_key)

    def ack(self, delivery_tag: int) -> bool:
        """Acknowledge a delivery. False when the channel is closed: the broker delivers it
        again."""
        return self._settle_delivery(ACK, delivery_tag, 0, 13)

    def requeue(self, delivery_tag: int, *, multiple: bool = False) -> bool:
        """Give a delivery back to its queue, with `multiple` all before it, too. False when the
        channel is closed already."""
        bits = _REQUEUE | _MULTIPLE if multiple else _REQUEUE
        return self._settle_delivery(NACK, delivery_tag, bits, 13)

    def _settle_delivery(self, method: int, delivery_tag: int, bits: int, length: int) -> bool:
        if self.closed.done():
            return False
        self._write(
            _ack_frame(METHOD, self.number, length, BASIC, method, delivery_tag, bits, FRAME_END)
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
            # Frames written until then are appended and sent with these, in order: the broker
            # numbers publishes as they reach it.
            self.loop.call_later(_FLUSH_RETRY_INTERVAL, self._flush)
        else:
            self._outgoing.clear()

    # --- calls and closing ------------------------------------------------------------------

    async def rpc(self, frame: Any, timeout: Any = None) -> Any:
        """Make a call as aiormq does. Raises one of CHANNEL_ERRORS, whatever ends the connection
        meanwhile."""
        with library_calls():
            return await super().rpc(frame, timeout)

    def _on_closed(self, closing: asyncio.Future[Any]) -> None:
        reason = _reason_of(closing)
        if not self.closed.done():
            self.closed.set_result(reason)
        for confirm, error in self._unconfirmed.pop_all(reason):
            _settle_confirm(confirm, error)
        if self._window_waiter is not None and not self._window_waiter.done():
            self._window_waiter.set_result(None)


def _log() -> FilteringBoundLogger:
    logger: FilteringBoundLogger = structlog.get_logger("wire")
    return logger


def _settle_confirm(confirm: asyncio.Future[None], error: PublishError | None) -> None:
    if confirm.done():  # the publisher gave up waiting
        return
    if error is None:
        confirm.set_result(None)
    else:
        confirm.set_exception(error)
        confirm.exception()  # a publisher that gave up must not cause a warning


def _reason_of(closing: asyncio.Future[Any]) -> str:
    error = None if closing.cancelled() else closing.exception()
    return (str(error) if error else "") or "it was closed"


async def open_channel(
    connection: Connection, *, confirms: bool, limit: float = ANSWER_TIMEOUT
) -> PipelinedChannel:
    """Open a PipelinedChannel on an aiormq connection, with publisher confirms or without.

    Raises one of CHANNEL_ERRORS, after `limit` seconds at the latest. A connection on which no
    channel could be opened yet is cut then: its peer is no broker, or none that answers, and the
    next try needs another connection.
    """
    try:
        async with time_limit(limit):
            return await _open(connection, confirms)
    except TimeoutError:
        if not any(getattr(each, "was_opened", False) for each in connection.channels.values()):
            await _cut(connection)
        raise


async def _open(connection: Connection, confirms: bool) -> PipelinedChannel:
    with library_calls():
        async with connection.last_channel_lock:
            number = max(connection.channels, default=0) + 1
            channel = PipelinedChannel(connection, number, publisher_confirms=confirms)
            connection.channels[number] = channel
            tap = tap_of(connection)
            tap.attach(number, channel)
            channel.closed.add_done_callback(lambda _: tap.detach(number, channel))
        await channel.open()
    channel.was_opened = True
    return channel


async def cut_connection(channel: PipelinedChannel) -> None:
    """Cut the channel's connection: what waits for a confirm on it fails with BrokerUnavailable,
    and the next use connects anew."""
    if isinstance(channel.connection, Connection) and not channel.closed.done():
        await _cut(channel.connection)


async def _cut(connection: Connection) -> None:
    """Cut a connection without waiting for its peer."""
    tap_of(connection).abort()
    await asyncio.wait((connection.closing,), timeout=_CUT_TIMEOUT)
