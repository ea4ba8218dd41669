"""The asyncio publisher: confirmed, mandatory, persistent, pipelined.

It has a connection of its own, so that an alarm that blocks publishers never stops a consumer.
The functions and types at the top are shared with the blocking publisher (broker/blocking.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog

from switchyard.broker.away import meaning_away
from switchyard.broker.connection import CONNECT_TIMEOUT, Link, is_blocked
from switchyard.broker.dead import DeathCertificate, Reason
from switchyard.broker.errors import (
    Blocked,
    BrokerAway,
    LaneFull,
    PublishError,
    Refused,
)
from switchyard.broker.lanes import DEAD_EXCHANGE, JOBS_EXCHANGE, LANES, lane_of
from switchyard.broker.message import JobMessage, now
from switchyard.broker.settings import BrokerSettings, Profile
from switchyard.broker.wire import Envelope, PipelinedChannel, open_channel

PATIENCE = 0.5
"""Seconds that a publish under way waits for its confirm on a connection that is blocked. The
broker says so only when something is published, and keeps that until the alarm is over."""
OUTAGE_PAUSE = 1.0
"""Seconds in which a batch that found the broker away does not look for it again."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has confirmed the message: it is in its queue, on disk."""

    job_id: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A job message and where it goes."""

    message: JobMessage
    routing_key: str


Result = Accepted | PublishError
"""How one publish of a batch ended: errors are returned, so that each job has its own."""


def envelope_of(message: JobMessage, headers: dict[str, Any] | None = None) -> Envelope:
    """The message as it travels: AMQP properties repeat what routing and tools need."""
    return Envelope(
        body=message.encode(),
        message_id=message.job_id,
        type=message.job_type,
        priority=message.priority,
        timestamp=max(int(message.metadata.created_at.timestamp()), 0),  # unsigned on the wire
        headers=headers,
    )


def broker_parks_overflow(profile: Profile) -> bool:
    """Whether a full hot queue dead-letters the newcomer by itself.

    Quorum queues don't know `reject-publish-dlx` (measured on 4.3.6: they fall back to dropping
    the head), so there the publisher puts what was refused into the dead letters.
    """
    return profile == "classic"


def overflowed(routing_key: str) -> DeathCertificate:
    """The certificate of a job that its full lane refused."""
    return DeathCertificate(Reason.OVERFLOWED, routing_key, message="the lane was full")


_PARKING_LANES = frozenset(lane.name for lane in LANES if lane.dead_letters_overflow)


def lane_full(routing_key: str) -> LaneFull:
    """What a nack means for a job that was published to its lane."""
    return LaneFull(routing_key, dead_lettered=lane_of(routing_key) in _PARKING_LANES)


def letter_to_park(job: Outgoing, profile: Profile) -> Envelope | None:
    """The dead letter that the publisher itself must send when `job` found its lane full.

    None when nothing is kept of it, or when the broker has dead-lettered it already.
    """
    if broker_parks_overflow(profile) or lane_of(job.routing_key) not in _PARKING_LANES:
        return None
    return envelope_of(job.message, overflowed(job.routing_key).headers())


def blocked() -> Blocked:
    """A publish that was not sent because of an alarm."""
    return Blocked(
        "the broker blocks publishers (memory or disk alarm); nothing was sent: "
        "see `rabbitmqctl status`, free memory or disk, and publish again"
    )


def held() -> BrokerAway:
    """A publish that was on its way when the broker raised an alarm."""
    return BrokerAway(
        "the broker blocks publishers (memory or disk alarm) and holds what was sent until then: "
        "see `rabbitmqctl status`, free memory or disk, and publish again under the same job id",
        maybe_accepted=True,
    )


def unconfirmed(timeout: float) -> BrokerAway:
    """A publish that the broker did not confirm in time."""
    return BrokerAway(f"no confirm within {timeout:g} s", maybe_accepted=True)


def no_room(timeout: float) -> BrokerAway:
    """A publish that was not sent, because no earlier one was confirmed in time."""
    return BrokerAway(
        f"the broker confirmed nothing within {timeout:g} s; this was not sent",
        maybe_accepted=False,
    )


class Outage:
    """Spares the rest of a batch from looking for a broker that is away, one time-out each."""

    def __init__(self) -> None:
        self._error: BrokerAway | None = None
        self._until = 0.0

    def note(self, error: object) -> None:
        """What became of a job that was to be sent."""
        if isinstance(error, BrokerAway) and error is not self._error:
            self._error = error
            self._until = time.monotonic() + OUTAGE_PAUSE

    @property
    def error(self) -> BrokerAway | None:
        """The error of the last job, if it is so fresh that the next one would meet it too."""
        if self._error is not None and time.monotonic() >= self._until:
            self._error = None
        return self._error


@dataclass(slots=True)
class _Sent:
    """A publish under way."""

    confirm: asyncio.Future[None]
    channel: PipelinedChannel
    at: float
    """Seconds, on the monotonic clock."""


class Publisher:
    """Publishes to the broker; safe to use from many coroutines at once.

    Use it as an async context manager, or call `close`. It connects at the first publish and
    again after a loss; a publish never waits longer for a connection than the connect timeout.
    """

    def __init__(self, settings: BrokerSettings, *, name: str = "switchyard-publisher") -> None:
        self._profile = settings.profile
        self._window = settings.publish_window
        self._timeout = settings.confirm_timeout
        self._link = Link(settings.require_amqp_url(), name, structlog.get_logger("publisher"))
        self._channel: PipelinedChannel | None = None
        self._opening: asyncio.Task[PipelinedChannel] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Publishes that still wait for their confirm fail."""
        if self._opening is not None:  # else it would connect behind our back
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._link.close()

    async def publish(self, message: JobMessage, routing_key: str) -> Accepted:
        """Publish one job and wait for its confirm.

        Raises LaneFull, Unroutable, Blocked or BrokerAway (all PublishError).
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
        outage = Outage()
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

        For retries, dead letters and redrives. Raises Refused, Unroutable, Blocked, BrokerAway.
        """
        channel = self._ready() or await self._until_ready()
        confirm = channel.publish(exchange, routing_key, envelope)
        await self._confirmed(_Sent(confirm, channel, time.monotonic()))

    def send_soon(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish without waiting and without caring for the outcome (events).

        Does nothing while there is no connection, the broker blocks it, or the window is full.
        """
        channel = self._ready()
        if channel is not None:
            channel.publish(exchange, routing_key, envelope, mandatory=False)
        else:
            self.connect_soon()

    def connect_soon(self) -> None:
        """Connect in the background, so that `send_soon` finds a connection. Once, and silently:
        the next publish that matters tries again, and tells."""
        if self._channel is not None and not self._channel.closed.done():
            return
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open_channel())
            self._opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[PipelinedChannel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._channel = opening.result()

    async def _start(self, job: Outgoing) -> _Sent | PublishError:
        try:
            channel = self._ready() or await self._until_ready()
            confirm = channel.publish(JOBS_EXCHANGE, job.routing_key, envelope_of(job.message))
        except PublishError as error:
            return error
        return _Sent(confirm, channel, time.monotonic())

    def _ready(self) -> PipelinedChannel | None:
        """The channel, if a publish can leave on it now."""
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
        await self._room(channel)
        return channel

    async def _room(self, channel: PipelinedChannel) -> None:
        began = time.monotonic()
        while channel.unconfirmed >= self._window and not channel.closed.done():
            if is_blocked(channel.connection):
                raise blocked()
            if time.monotonic() - began >= self._timeout:
                raise no_room(self._timeout)
            with suppress(TimeoutError):  # a look around, and on
                await asyncio.wait_for(channel.room(self._window), PATIENCE)

    async def _result(self, job: Outgoing, sent: _Sent | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            if not sent.confirm.done():
                await self._confirmed(sent)
            sent.confirm.result()
        except Refused:
            try:
                return await self._lane_full(job)
            except PublishError as error:
                return error
        except PublishError as error:
            return error
        return Accepted(job.message.job_id, job.routing_key)

    async def _lane_full(self, job: Outgoing) -> LaneFull:
        letter = letter_to_park(job, self._profile)
        if letter is not None:
            await self.send(DEAD_EXCHANGE, job.routing_key, letter)
        return lane_full(job.routing_key)

    async def _confirmed(self, sent: _Sent) -> None:
        confirm = sent.confirm
        while not confirm.done():
            waited = time.monotonic() - sent.at
            if waited >= PATIENCE and is_blocked(sent.channel.connection):
                raise held()
            if waited >= self._timeout:
                raise unconfirmed(self._timeout)
            await asyncio.wait((confirm,), timeout=min(PATIENCE, self._timeout - waited))
        confirm.result()

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

    async def _open_channel(self) -> PipelinedChannel:
        connection = await self._link.connection_now()
        if is_blocked(connection):
            raise blocked()
        with meaning_away("can't open a channel"):
            return await asyncio.wait_for(open_channel(connection, confirms=True), CONNECT_TIMEOUT)


async def _as_async(jobs: Iterable[Outgoing]) -> AsyncIterator[Outgoing]:
    for job in jobs:
        yield job


def queued_now(message: JobMessage) -> JobMessage:
    """The message, stamped with the time at which it enters its lane."""
    return message.with_metadata(queued_at=now())
