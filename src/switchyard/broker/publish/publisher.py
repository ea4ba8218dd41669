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
from switchyard.broker.forking import OwnerProcess
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
    blocked_error,
    counted_lane,
    envelope_of,
    lane_full_error,
    outcome_name,
    overflow_letter,
    unconfirmed_error,
    unconfirmed_while_blocked_error,
    window_full_error,
)
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import PipelinedChannel, cut_connection, open_channel
from switchyard.broker.wire.connection import CONNECT_TIMEOUT, is_blocked
from switchyard.broker.wire.depths import ManagementDepths, is_unbound, query_queue
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.failures import ANSWER_TIMEOUT, raising_broker_unavailable
from switchyard.broker.wire.reconnector import Guard, Reconnector


@dataclass(slots=True)
class _PendingPublish:
    """A publish under way."""

    confirm: asyncio.Future[None]
    channel: PipelinedChannel
    at: float
    """Seconds, on the monotonic clock."""


class Publisher(AsyncCloseable):
    """Publishes to the broker; safe to use from many coroutines at once.

    Use it as an async context manager, or call `close`. It connects at the first publish and
    again after a loss; a publish never waits longer for a connection than the connect timeout. In a
    forked child it connects anew, in the child's event loop.
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
        self._reset()

    def _reset(self) -> None:
        """Set everything that belongs to an event loop or a connection to its start."""
        self._owner = OwnerProcess()
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

    def _reset_in_child(self) -> None:
        """Reset in a forked child of the process that made this publisher: the connections belong
        to the parent."""
        if not self._owner.is_current:
            # Referenced for ever: when garbage-collected, parts of the library would close the
            # parent's connections.
            self._parents_objects += [
                self._reconnector,
                self._lone_reconnector,
                self._opening,
                self._queues,
            ]
            self._reset()

    async def close(self) -> None:
        """Close the connection. Publishes that still wait for their confirm fail."""
        self._reset_in_child()
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
        waiting: list[tuple[Outgoing, _PendingPublish | PublishError]] = []
        outage = ConnectionFailureMemo()
        async for job in jobs:
            if len(waiting) >= self._window:
                half = max(len(waiting) // 2, 1)
                for entry in waiting[:half]:
                    yield await self._await_result(*entry)
                del waiting[:half]
            sent = outage.error or await self._send_job(job)
            outage.note(sent)
            waiting.append((job, sent))
        for entry in waiting:
            yield await self._await_result(*entry)

    async def send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish anything to any exchange and wait for the confirm.

        For retries, dead letters and redrives. Raises Refused, Unroutable, NeverTaken,
        NotPermitted, Blocked, BrokerUnavailable.
        """
        self._size_limit.check(len(envelope.body))
        channel = self._free_channel() or await self._wait_for_channel()
        confirm = channel.publish(exchange, routing_key, envelope)
        sent = _PendingPublish(confirm, channel, time.monotonic())
        await self._confirm(sent, exchange, routing_key, lambda: envelope)

    def check(self, message: JobMessage) -> None:
        """Raise NeverTaken if the job is already known to be too large; nothing is sent."""
        if self._size_limit.may_refuse:
            self._size_limit.check_job(len(envelope_of(message).body))

    async def probe(self) -> None:
        """Check that the broker takes messages in: publish one that no queue gets, and wait for its
        confirm. Raises Blocked under a memory or disk alarm, BrokerUnavailable."""
        channel = self._free_channel() or await self._wait_for_channel()
        empty = Envelope(body=b"", message_id="probe")
        confirm = channel.publish(EVENTS_EXCHANGE, "probe", empty, mandatory=False)
        await self._wait_for_confirm(_PendingPublish(confirm, channel, time.monotonic()))

    def send_soon(
        self, exchange: str, routing_key: str, make_envelope: Callable[[], Envelope]
    ) -> None:
        """Publish the envelope that `make_envelope` returns, without waiting for its outcome
        (events).

        Does nothing while nobody listens (`broker.publish.no_listener_cache`), there is no
        connection, the broker blocks it, or the window is full.
        """
        if self._no_listeners.has_no_listener(exchange, routing_key):
            return
        channel = self._free_channel()
        if channel is not None:
            envelope = make_envelope()
            try:
                self._size_limit.check(len(envelope.body))
                confirm = channel.publish(exchange, routing_key, envelope)
            except NeverTaken as error:
                self._log.warning("event dropped", routing_key=routing_key, error=str(error))
                return
            confirm.add_done_callback(self._learn_size_limit)
            self._no_listeners.note_sent(exchange, routing_key, confirm)
        else:
            self.connect_soon()

    def connect_soon(self) -> None:
        """Connect in the background, so that `send_soon` finds a connection. Tried once, and a
        failure is not reported: the next publish of a job tries again, and reports it."""
        self._reset_in_child()
        if self._channel is not None and not self._channel.closed.done():
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_channel())
            self._opening.add_done_callback(self._store_channel)

    def _store_channel(self, opening: asyncio.Task[PipelinedChannel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._channel = opening.result()

    async def _send_job(self, job: Outgoing) -> _PendingPublish | PublishError:
        try:
            envelope = envelope_of(job.message)
            self._size_limit.check_job(len(envelope.body))
            channel = self._free_channel() or await self._wait_for_channel()
            if job.queue is not None and await self._is_queue_missing(channel, job.queue):
                return Unroutable(JOBS_EXCHANGE, job.routing_key, queue=job.queue)
            confirm = channel.publish(JOBS_EXCHANGE, job.routing_key, envelope)
        except PublishError as error:
            return error
        return _PendingPublish(confirm, channel, time.monotonic())

    async def _is_queue_missing(self, channel: PipelinedChannel, queue: str) -> bool:
        """Tell whether the broker of that channel is known to lack the queue, or its bindings; no
        answer in time counts as False. The job leaves on the same channel or not at all: the next
        connection may be to a broker that is empty."""
        connection = channel.connection
        if not isinstance(connection, Connection):
            return False
        return await self._queues.has(connection, queue, self.queue_timeout) is False

    def _free_channel(self) -> PipelinedChannel | None:
        """Return the channel, if a publish can leave on it now."""
        self._reset_in_child()
        channel = self._channel
        if (
            channel is None
            or channel.closed.done()
            or channel.unconfirmed >= self._window
            or is_blocked(channel.connection)
        ):
            return None
        return channel

    async def _wait_for_channel(self) -> PipelinedChannel:
        channel = await self._get_channel()
        await self._wait_for_window(channel)
        return channel

    async def _wait_for_window(self, channel: PipelinedChannel) -> None:
        began = time.monotonic()
        while channel.unconfirmed >= self._window and not channel.closed.done():
            if is_blocked(channel.connection):
                raise blocked_error()
            if time.monotonic() - began >= self._timeout:
                raise window_full_error(self._timeout)
            with suppress(TimeoutError):  # look again whether it is blocked or closed
                async with asyncio.timeout(BLOCKED_CONFIRM_TIMEOUT):
                    await channel.wait_for_window(self._window)

    async def _await_result(self, job: Outgoing, sent: _PendingPublish | PublishError) -> Result:
        result = await self._await_outcome(job, sent)
        self.count(job, result)
        return result

    def count(self, job: Outgoing, result: Result) -> None:
        """Count how a publish has ended; also one that was refused before it was sent."""
        key = counted_lane(job.routing_key), outcome_name(result)
        self.counts[key] = self.counts.get(key, 0) + 1

    async def _await_outcome(self, job: Outgoing, sent: _PendingPublish | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            if not sent.confirm.done() or sent.confirm.exception() is not None:
                make_envelope = partial(envelope_of, job.message)
                await self._confirm(sent, JOBS_EXCHANGE, job.routing_key, make_envelope, job.queue)
        except Refused:
            try:
                return await self._settle_overflow(job)
            except PublishError as error:
                return error
        except PublishError as error:
            return error
        return Accepted(job.message.job_id, job.routing_key)

    async def _settle_overflow(self, job: Outgoing) -> LaneFull:
        letter = overflow_letter(job, self._profile)
        if letter is not None:
            await self.send(DEAD_EXCHANGE, job.routing_key, letter)
        return lane_full_error(job.routing_key)

    async def _confirm(
        self,
        sent: _PendingPublish,
        exchange: str,
        routing_key: str,
        make_envelope: Callable[[], Envelope],
        queue: str | None = None,
    ) -> None:
        """Wait for the confirm of a publish. `make_envelope` makes its envelope again, to publish
        it alone where the broker may have closed the channel because of another one. Raises as
        `send`."""
        try:
            try:
                await self._wait_for_confirm(sent)
            except BrokerUnavailable as error:
                if not error.closed_by_some_message:
                    raise
                await self._send_alone(exchange, routing_key, make_envelope(), queue)
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
                channel = await self._get_lone_channel()
                if queue is not None and await self._is_queue_missing(channel, queue):
                    raise Unroutable(exchange, routing_key, queue=queue)
            except PublishError as error:  # it had been sent before
                raise BrokerUnavailable(str(error), maybe_accepted=True) from error
            confirm = channel.publish(exchange, routing_key, envelope)
            await self._wait_for_confirm(_PendingPublish(confirm, channel, time.monotonic()))

    async def _get_lone_channel(self) -> PipelinedChannel:
        channel = self._lone_channel
        if channel is not None and channel.unconfirmed:  # whose publisher has given up waiting
            await cut_connection(channel)
        if channel is None or channel.closed.done():
            channel = self._lone_channel = await self._open_channel(self._lone_reconnector)
        if is_blocked(channel.connection):
            raise blocked_error()
        return channel

    def _learn_size_limit(self, confirm: asyncio.Future[None]) -> None:
        if not confirm.cancelled():
            self._size_limit.learn(confirm.exception())

    async def _wait_for_confirm(self, sent: _PendingPublish) -> None:
        confirm = sent.confirm
        while not confirm.done():
            waited = time.monotonic() - sent.at
            if waited >= BLOCKED_CONFIRM_TIMEOUT and is_blocked(sent.channel.connection):
                raise unconfirmed_while_blocked_error()
            if waited >= self._timeout:
                if self._has_other_nodes:
                    # A node that is cut off from its cluster takes messages and confirms none:
                    # connect again, perhaps to another.
                    await cut_connection(sent.channel)
                raise unconfirmed_error(self._timeout)
            left = min(BLOCKED_CONFIRM_TIMEOUT, self._timeout - waited)
            await asyncio.wait((confirm,), timeout=left)
        confirm.result()

    async def _has_queue(self, connection: Connection, queue: str) -> bool:
        try:
            return await query_queue(connection, queue) is not None
        except ChannelAccessRefused:
            return queue in await self._management_depths.by_queue(fresh=True)

    async def _get_channel(self) -> PipelinedChannel:
        channel = self._channel
        if channel is None or channel.closed.done():
            # One attempt for all who wait: when the broker is away, nobody waits for the time-outs
            # of others. Shielded, because a publish that is cancelled must not end it for them.
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(self._open_channel())
            channel = self._channel = await asyncio.shield(self._opening)
        if is_blocked(channel.connection):
            raise blocked_error()
        return channel

    async def _open_channel(self, reconnector: Reconnector | None = None) -> PipelinedChannel:
        connection = await (reconnector or self._reconnector).connection_now()
        if is_blocked(connection):
            raise blocked_error()
        with raising_broker_unavailable("can't open a channel"):
            return await open_channel(connection, confirms=True, limit=CONNECT_TIMEOUT)


async def _as_async(jobs: Iterable[Outgoing]) -> AsyncIterator[Outgoing]:
    for job in jobs:
        yield job
