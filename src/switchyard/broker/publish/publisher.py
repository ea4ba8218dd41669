"""The asyncio publisher: confirmed, mandatory, persistent, pipelined.

It has a connection of its own, so that an alarm that blocks publishers never stops a consumer.
What it shares with the blocking publisher is in `broker.publish.outcome`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import structlog
from aiormq.connection import Connection
from aiormq.exceptions import ChannelAccessRefused

from switchyard.broker.addresses import nodes_of
from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.errors import (
    BrokerUnavailable,
    LaneFull,
    NeverTaken,
    PublishError,
    Refused,
    Unroutable,
)
from switchyard.broker.forking import Owner
from switchyard.broker.lanes import DEAD_EXCHANGE, EVENTS_EXCHANGE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.known_queues import KnownQueues
from switchyard.broker.publish.no_listener_cache import NoListenerCache
from switchyard.broker.publish.outcome import (
    BLOCKED_CONFIRM_TIMEOUT,
    Accepted,
    ConnectionFailureMemo,
    Outgoing,
    Result,
    SizeLimit,
    blocked,
    counted_lane,
    envelope_of,
    held,
    lane_full,
    no_room,
    outcome_name,
    overflow_letter,
    unconfirmed,
)
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel, cut_connection, open_channel
from switchyard.broker.wire.connection import CONNECT_TIMEOUT, is_blocked
from switchyard.broker.wire.depths import ManagementDepths, ask_queue, is_unbound
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.failures import ANSWER_TIMEOUT, raising_broker_unavailable
from switchyard.broker.wire.reconnector import Guard, Reconnector


@dataclass(slots=True)
class _Sent:
    """A publish under way."""

    confirm: asyncio.Future[None]
    channel: PipelinedChannel
    at: float
    """Seconds, on the monotonic clock."""


class Publisher(AsyncCloseable):
    """Publishes to the broker; safe to use from many coroutines at once.

    Use it as an async context manager, or call `close`. It connects at the first publish and
    again after a loss; a publish never waits longer for a connection than the connect timeout. In a
    child that was forked it connects anew, in the event loop of that.
    """

    queue_timeout = ANSWER_TIMEOUT
    """Seconds that a publish waits to learn whether the job's queue exists."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        name: str = "switchyard-publisher",
        guard: Guard | None = None,
    ) -> None:
        """`guard` is asked of each connection before anything is published on it."""
        self._profile = settings.profile
        self._management_depths = ManagementDepths(settings)
        self._window = settings.publish_window
        self._timeout = settings.confirm_timeout
        self._log = structlog.get_logger("publisher")
        self._url, self._name, self._guard = settings.require_amqp_url(), name, guard
        self._has_other_nodes = len(nodes_of(settings.require_amqp_url())) > 1
        self.counts: dict[tuple[str, str], int] = {}
        """How many jobs ended how, by lane and outcome (`outcome_name`), since it was made."""
        self._size_limit = SizeLimit(settings.max_message_size)
        self._parents_objects: list[object] = []
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing that belongs to an event loop or a connection."""
        self._owner = Owner()
        self._reconnector = Reconnector(self._url, self._name, self._log, guard=self._guard)
        self._channel: PipelinedChannel | None = None
        self._opening: asyncio.Task[PipelinedChannel] | None = None
        self._lone_reconnector = Reconnector(
            self._url, f"{self._name}-alone", self._log, guard=self._guard
        )
        self._lone_channel: PipelinedChannel | None = None
        """Resends what was on a channel that the broker has closed: one publish at a time, on a
        connection of its own, which is made when it is needed."""
        self._alone_lock = asyncio.Lock()
        self._queues = KnownQueues(self._has_queue, is_unbound)
        self._no_listeners = NoListenerCache()

    def _begin_in_child(self) -> None:
        """Begin anew in a forked child of the process that made this publisher: the connections
        belong to the parent."""
        if not self._owner.is_here:
            # Kept: garbage-collected, parts of the library would close what they believe is open.
            self._parents_objects += [
                self._reconnector,
                self._lone_reconnector,
                self._opening,
                self._queues,
            ]
            self._begin()

    async def close(self) -> None:
        """Close the connection. Publishes that still wait for their confirm fail."""
        self._begin_in_child()
        if self._opening is not None:  # else it would connect behind our back
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._queues.close()
        await self._reconnector.close()
        await self._lone_reconnector.close()

    async def publish(self, message: JobMessage, routing_key: str) -> Accepted:
        """Publish one job and wait for its confirm.

        Raises LaneFull, Unroutable, NeverTaken, NotPermitted, Blocked or BrokerUnavailable (all
        PublishError).
        """
        result = (await self.publish_many([Outgoing(message, routing_key)]))[0]
        if isinstance(result, PublishError):
            raise result
        return result

    async def publish_many(self, jobs: Iterable[Outgoing]) -> list[Result]:
        """Publish jobs, pipelined within the window; results in the order of the jobs."""
        return [result async for result in self.publish_stream(_as_async(jobs))]

    async def publish_stream(self, jobs: AsyncIterable[Outgoing]) -> AsyncIterator[Result]:
        """Publish jobs as they come and yield their results in the same order.

        Holds at most a window of them in memory.
        """
        waiting: list[tuple[Outgoing, _Sent | PublishError]] = []
        outage = ConnectionFailureMemo()
        async for job in jobs:
            if len(waiting) >= self._window:
                half = max(len(waiting) // 2, 1)
                for sent in waiting[:half]:
                    yield await self._result(*sent)
                del waiting[:half]
            started = outage.error or await self._start(job)
            outage.note(started)
            waiting.append((job, started))
        for sent in waiting:
            yield await self._result(*sent)

    async def send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish anything to any exchange and wait for the confirm.

        For retries, dead letters and redrives. Raises Refused, Unroutable, NeverTaken,
        NotPermitted, Blocked, BrokerUnavailable.
        """
        self._size_limit.check(len(envelope.body))
        channel = self._ready() or await self._until_ready()
        confirm = channel.publish(exchange, routing_key, envelope)
        sent = _Sent(confirm, channel, time.monotonic())
        await self._confirm(sent, exchange, routing_key, lambda: envelope)

    def check(self, message: JobMessage) -> None:
        """Raise NeverTaken if the job is already known to be too large; nothing is sent."""
        if self._size_limit.may_refuse:
            self._size_limit.check_job(len(envelope_of(message).body))

    async def probe(self) -> None:
        """Check that the broker takes messages in: publish one that no queue gets, and wait for its
        confirm. Raises Blocked under a memory or disk alarm, BrokerUnavailable."""
        channel = self._ready() or await self._until_ready()
        nothing = Envelope(body=b"", message_id="probe")
        confirm = channel.publish(EVENTS_EXCHANGE, "probe", nothing, mandatory=False)
        await self._wait_for_confirm(_Sent(confirm, channel, time.monotonic()))

    def send_soon(self, exchange: str, routing_key: str, make: Callable[[], Envelope]) -> None:
        """Publish the envelope that `make` returns, without waiting for its outcome (events).

        Does nothing while nobody listens (`broker.publish.no_listener_cache`), there is no
        connection, the broker blocks it, or the window is full.
        """
        if self._no_listeners.is_unheard(exchange, routing_key):
            return
        channel = self._ready()
        if channel is not None:
            envelope = make()
            try:
                self._size_limit.check(len(envelope.body))
                confirm = channel.publish(exchange, routing_key, envelope)
            except NeverTaken as error:
                self._log.warning("event dropped", routing_key=routing_key, error=str(error))
                return
            confirm.add_done_callback(self._learn)
            self._no_listeners.note_sent(exchange, routing_key, confirm)
        else:
            self.connect_soon()

    def connect_soon(self) -> None:
        """Connect in the background, so that `send_soon` finds a connection. Once, and silently:
        the next publish that matters tries again, and tells."""
        self._begin_in_child()
        if self._channel is not None and not self._channel.closed.done():
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_channel())
            self._opening.add_done_callback(self._store_channel)

    def _store_channel(self, opening: asyncio.Task[PipelinedChannel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._channel = opening.result()

    async def _start(self, job: Outgoing) -> _Sent | PublishError:
        try:
            envelope = envelope_of(job.message)
            self._size_limit.check_job(len(envelope.body))
            channel = self._ready() or await self._until_ready()
            if job.queue is not None and await self._lacks(channel, job.queue):
                return Unroutable(JOBS_EXCHANGE, job.routing_key, queue=job.queue)
            confirm = channel.publish(JOBS_EXCHANGE, job.routing_key, envelope)
        except PublishError as error:
            return error
        return _Sent(confirm, channel, time.monotonic())

    async def _lacks(self, channel: PipelinedChannel, queue: str) -> bool:
        """Tell whether the broker of that channel is known to lack the queue, or its bindings; no
        answer in time counts as False. The job leaves on the same channel or not at all: the next
        connection may be to a broker that is empty."""
        connection = channel.connection
        if not isinstance(connection, Connection):
            return False
        return await self._queues.has(connection, queue, self.queue_timeout) is False

    def _ready(self) -> PipelinedChannel | None:
        """Return the channel, if a publish can leave on it now."""
        self._begin_in_child()
        channel = self._channel
        if (
            channel is None
            or channel.closed.done()
            or channel.unconfirmed >= self._window
            or is_blocked(channel.connection)
        ):
            return None
        return channel

    async def _until_ready(self) -> PipelinedChannel:
        channel = await self._open()
        await self._wait_for_room(channel)
        return channel

    async def _wait_for_room(self, channel: PipelinedChannel) -> None:
        began = time.monotonic()
        while channel.unconfirmed >= self._window and not channel.closed.done():
            if is_blocked(channel.connection):
                raise blocked()
            if time.monotonic() - began >= self._timeout:
                raise no_room(self._timeout)
            with suppress(TimeoutError):  # look again whether it is blocked or closed
                async with asyncio.timeout(BLOCKED_CONFIRM_TIMEOUT):
                    await channel.wait_for_window(self._window)

    async def _result(self, job: Outgoing, sent: _Sent | PublishError) -> Result:
        result = await self._result_of(job, sent)
        self.count(job, result)
        return result

    def count(self, job: Outgoing, result: Result) -> None:
        """Count how a publish has ended; also one that was refused before it was sent."""
        key = counted_lane(job.routing_key), outcome_name(result)
        self.counts[key] = self.counts.get(key, 0) + 1

    async def _result_of(self, job: Outgoing, sent: _Sent | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            if not sent.confirm.done() or sent.confirm.exception() is not None:
                make = partial(envelope_of, job.message)
                await self._confirm(sent, JOBS_EXCHANGE, job.routing_key, make, job.queue)
        except Refused:
            try:
                return await self._lane_full(job)
            except PublishError as error:
                return error
        except PublishError as error:
            return error
        return Accepted(job.message.job_id, job.routing_key)

    async def _lane_full(self, job: Outgoing) -> LaneFull:
        letter = overflow_letter(job, self._profile)
        if letter is not None:
            await self.send(DEAD_EXCHANGE, job.routing_key, letter)
        return lane_full(job.routing_key)

    async def _confirm(
        self,
        sent: _Sent,
        exchange: str,
        routing_key: str,
        make: Callable[[], Envelope],
        queue: str | None = None,
    ) -> None:
        """Wait for the confirm of a publish. `make` makes its envelope again, to publish it alone
        where the broker may have closed the channel because of another one. Raises as `send`."""
        try:
            try:
                await self._wait_for_confirm(sent)
            except BrokerUnavailable as error:
                if not error.closed_by_some_message:
                    raise
                await self._send_alone(exchange, routing_key, make(), queue)
        except PublishError as error:
            self._size_limit.learn(error)
            raise

    async def _send_alone(
        self, exchange: str, routing_key: str, envelope: Envelope, queue: str | None
    ) -> None:
        """Publish with nothing beside it: if the broker closes this channel, it is the fault of
        this message. Raises as `send`; BrokerUnavailable also where `queue` is missing, since the
        first try may have been accepted."""
        async with self._alone_lock:
            self._size_limit.check(len(envelope.body))
            try:
                channel = await self._open_lone()
                if queue is not None and await self._lacks(channel, queue):
                    raise Unroutable(exchange, routing_key, queue=queue)
            except PublishError as error:  # it had been sent before
                raise BrokerUnavailable(str(error), maybe_accepted=True) from error
            confirm = channel.publish(exchange, routing_key, envelope)
            await self._wait_for_confirm(_Sent(confirm, channel, time.monotonic()))

    async def _open_lone(self) -> PipelinedChannel:
        channel = self._lone_channel
        if channel is not None and channel.unconfirmed:  # whose publisher has given up waiting
            await cut_connection(channel)
        if channel is None or channel.closed.done():
            channel = self._lone_channel = await self._open_channel(self._lone_reconnector)
        if is_blocked(channel.connection):
            raise blocked()
        return channel

    def _learn(self, confirm: asyncio.Future[None]) -> None:
        if not confirm.cancelled():
            self._size_limit.learn(confirm.exception())

    async def _wait_for_confirm(self, sent: _Sent) -> None:
        confirm = sent.confirm
        while not confirm.done():
            waited = time.monotonic() - sent.at
            if waited >= BLOCKED_CONFIRM_TIMEOUT and is_blocked(sent.channel.connection):
                raise held()
            if waited >= self._timeout:
                if self._has_other_nodes:
                    # A node that is cut off from its cluster takes messages and confirms none:
                    # connect again, perhaps to another.
                    await cut_connection(sent.channel)
                raise unconfirmed(self._timeout)
            left = min(BLOCKED_CONFIRM_TIMEOUT, self._timeout - waited)
            await asyncio.wait((confirm,), timeout=left)
        confirm.result()

    async def _has_queue(self, connection: Connection, queue: str) -> bool:
        try:
            return await ask_queue(connection, queue) is not None
        except ChannelAccessRefused:
            return queue in await self._management_depths.by_queue(fresh=True)

    async def _open(self) -> PipelinedChannel:
        channel = self._channel
        if channel is None or channel.closed.done():
            # One attempt for all who wait: when the broker is away, nobody waits for the time-outs
            # of others. Shielded, because a publish that is cancelled must not end it for them.
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open_channel())
            channel = self._channel = await asyncio.shield(self._opening)
        if is_blocked(channel.connection):
            raise blocked()
        return channel

    async def _open_channel(self, reconnector: Reconnector | None = None) -> PipelinedChannel:
        connection = await (reconnector or self._reconnector).connection_now()
        if is_blocked(connection):
            raise blocked()
        with raising_broker_unavailable("can't open a channel"):
            return await open_channel(connection, confirms=True, limit=CONNECT_TIMEOUT)


async def _as_async(jobs: Iterable[Outgoing]) -> AsyncIterator[Outgoing]:
    for job in jobs:
        yield job
