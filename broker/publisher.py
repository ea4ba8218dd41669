"""The asyncio publisher: confirmed, mandatory, persistent, pipelined.

It has a connection of its own, so that an alarm that blocks publishers never stops a consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog

from broker.connection import CHANNEL_ERRORS, Link, is_blocked
from broker.dead import DeathCertificate, Reason
from broker.errors import Blocked, BrokerAway, LaneFull, PublishError, Refused
from broker.lanes import DEAD_EXCHANGE, JOBS_EXCHANGE, LANES, lane_of
from broker.message import JobMessage, now
from broker.settings import BrokerSettings, Profile
from broker.wire import Envelope, PipelinedChannel, open_channel


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
        timestamp=int(message.metadata.created_at.timestamp()),
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
        self._opening = asyncio.Lock()

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
        waiting: list[tuple[Outgoing, asyncio.Future[None] | PublishError]] = []
        async for job in jobs:
            if len(waiting) >= self._window:
                half = len(waiting) // 2
                for sent in waiting[:half]:
                    yield await self._result(*sent)
                del waiting[:half]
            waiting.append((job, await self._send(job)))
        for sent in waiting:
            yield await self._result(*sent)

    async def send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish anything to any exchange and wait for the confirm.

        For retries, dead letters and redrives. Raises Refused, Unroutable, Blocked, BrokerAway.
        """
        channel = await self._open()
        await channel.room(self._window)
        await self._confirmed(channel.publish(exchange, routing_key, envelope))

    def send_soon(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        """Publish without waiting and without caring for the outcome (events).

        Does nothing while there is no connection.
        """
        channel = self._channel
        if channel is not None and not channel.closed.done():
            confirm = channel.publish(exchange, routing_key, envelope, mandatory=False)
            confirm.add_done_callback(_retrieve)

    async def _send(self, job: Outgoing) -> asyncio.Future[None] | PublishError:
        try:
            channel = self._channel
            if channel is None or channel.closed.done() or is_blocked(channel.connection):
                channel = await self._open()
            if channel.unconfirmed >= self._window:
                await channel.room(self._window)
            return channel.publish(JOBS_EXCHANGE, job.routing_key, envelope_of(job.message))
        except PublishError as error:
            return error

    async def _result(self, job: Outgoing, sent: asyncio.Future[None] | PublishError) -> Result:
        if isinstance(sent, PublishError):
            return sent
        try:
            await self._confirmed(sent)
        except Refused:
            try:
                return await self._lane_full(job)
            except PublishError as error:
                return error
        except PublishError as error:
            return error
        return Accepted(job.message.job_id, job.routing_key)

    async def _lane_full(self, job: Outgoing) -> LaneFull:
        parks = lane_of(job.routing_key) in _PARKING_LANES
        if parks and not broker_parks_overflow(self._profile):
            await self.send(
                DEAD_EXCHANGE,
                job.routing_key,
                envelope_of(job.message, overflowed(job.routing_key).headers()),
            )
        return LaneFull(job.routing_key, dead_lettered=parks)

    async def _confirmed(self, confirm: asyncio.Future[None]) -> None:
        if confirm.done():
            confirm.result()
            return
        try:
            await asyncio.wait_for(confirm, self._timeout)
        except TimeoutError as error:
            raise BrokerAway(
                f"no confirm within {self._timeout:g} s", maybe_accepted=True
            ) from error

    async def _open(self) -> PipelinedChannel:
        async with self._opening:
            channel = self._channel
            if channel is None or channel.closed.done():
                connection = await self._link.connection_now()
                try:
                    channel = await open_channel(connection, confirms=True)
                except CHANNEL_ERRORS as error:
                    raise BrokerAway(
                        f"can't open a channel: {error}", maybe_accepted=False
                    ) from error
                self._channel = channel
            if is_blocked(channel.connection):
                raise Blocked(
                    "the broker blocks publishers (memory or disk alarm); nothing was sent: "
                    "see `rabbitmqctl status`, free memory or disk, and publish again"
                )
            return channel


async def _as_async(jobs: Iterable[Outgoing]) -> AsyncIterator[Outgoing]:
    for job in jobs:
        yield job


def _retrieve(confirm: asyncio.Future[None]) -> None:
    if not confirm.cancelled():
        confirm.exception()


def queued_now(message: JobMessage) -> JobMessage:
    """The message, stamped with the time at which it enters its lane."""
    return message.with_metadata(queued_at=now())
