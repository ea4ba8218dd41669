"""Publish events of jobs on `jobs.events`, and hand them to subscribers, with a short memory.

Events are best effort; only the ledger is certain. An event's id is derived from its content, so
that a client that was cut off can continue with another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from aiormq.connection import Connection
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json, to_json

from switchyard.broker import patterns
from switchyard.broker.consume.listening import consume_exchange, keep_listening
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.broker.message import JobId, describe
from switchyard.broker.publish.no_listener_cache import NO_LISTENER_TTL
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.engine.records.progress import ReportedProgress

MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 2_000, 2 * 1024 * 1024
"""Events that are kept for clients that come back, and their bytes, at most."""
BACKLOG, BACKLOG_BYTES = 1_000, 1024 * 1024
"""Events that may wait for one client, and their bytes; a slower client is cut off, and may connect
again."""
MAX_BYTES = 16 * 1024
"""The largest event. This system's own have a few hundred bytes."""
MAX_TIME = 1e11
"""Seconds since the epoch: the year 5138."""
PROGRESS = "progress"
"""Event that is not remembered: the next one replaces it, and many of them would displace
others."""
TEXT = "text"
"""Event with a piece of a job's output. It is not remembered: the job's result has all of it."""
ENDINGS = frozenset({"succeeded", "dead", "cancelled"})
"""Events that end a job."""


class _EventHeader(BaseModel):
    """Fields of every event."""

    event: Annotated[str, Field(pattern=patterns.WORD, max_length=32)]
    job_id: JobId
    at: Annotated[float, Field(ge=0, le=MAX_TIME)]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job's life."""

    id: str
    """`<microseconds>-<digest>`: orders events roughly, names each exactly."""
    name: str
    """started, progress, text, succeeded, retrying, dead, cancelled."""
    job_id: str
    at: float
    """Seconds since the epoch, by the clock of the sender."""
    body: bytes
    """JSON, as it was received: parsed, a hostile body takes thirty times as much memory."""

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of the event, the above included; parsed at each call."""
        fields: dict[str, Any] = from_json(self.body, allow_inf_nan=False)
        return fields

    @classmethod
    def from_body(cls, body: bytes | memoryview) -> JobEvent:
        """Parse the body of a message. Raises ValueError for one that is no event: anybody who may
        publish on the broker may have written it, and it is sent on to browsers."""
        raw = bytes(body)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"not an event: {len(raw)} bytes, more than {MAX_BYTES}")
        # Unlike `json.loads`, it raises ValueError whatever is wrong, and refuses NaN.
        fields = from_json(raw, allow_inf_nan=False)
        try:
            header = _EventHeader.model_validate(fields)
        except ValidationError as error:
            raise ValueError(f"not an event: {describe(error)}") from error
        digest = hashlib.sha256(raw).hexdigest()[:12]
        event_id = f"{int(header.at * 1_000_000)}-{digest}"
        return cls(event_id, header.event, header.job_id, header.at, raw)


def announce(
    publisher: Publisher,
    event: str,
    *,
    job_id: str,
    job_type: str,
    lane: str,
    attempt: int,
    worker_id: str | None = None,
    progress: ReportedProgress | None = None,
    text: tuple[str, int] | None = None,
) -> None:
    """Publish an event on `jobs.events` as `<event>.<lane>.<job_type>`, best effort. Without
    listeners, nothing is sent.

    `attempt` counts from 1; `worker_id` is None for an event outside of a worker.
    """

    def make_envelope() -> Envelope:
        body: dict[str, Any] = {
            "event": event,
            "job_id": job_id,
            "job_type": job_type,
            "lane": lane,
            "attempt": attempt,
            "worker_id": worker_id,
            "at": time.time(),
        }
        if progress is not None:
            body |= {"fraction": progress.fraction, "note": progress.note}
        if text is not None:
            body |= {"text": text[0], "offset": text[1]}
        return Envelope(body=to_json(body), message_id=job_id, type=event)

    publisher.send_soon(EVENTS_EXCHANGE, f"{event}.{lane}.{job_type}", make_envelope)


def text_event(job_id: str, text: str, offset: int, at: float) -> JobEvent:
    """Return an event with a piece of output of a job that runs in this process, without a
    broker."""
    fields = {"event": TEXT, "job_id": job_id, "at": at, "text": text, "offset": offset}
    return JobEvent.from_body(to_json(fields))


class Subscription:
    """The events of one client, since it subscribed."""

    def __init__(self, matches: Callable[[JobEvent], bool]) -> None:
        self._matches = matches
        self._waiting: deque[JobEvent] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self.is_over = False
        """No more events will come: the client was too slow, or the process stops."""

    def offer(self, event: JobEvent) -> None:
        """Add an event if it matches. A client that is too slow is cut off."""
        if self.is_over or not self._matches(event):
            return
        if len(self._waiting) >= BACKLOG or self._bytes + len(event.body) > BACKLOG_BYTES:
            self._waiting.clear()
            self.close()
            return
        self._waiting.append(event)
        self._bytes += len(event.body)
        self._changed.set()

    def close(self) -> None:
        self.is_over = True
        self._changed.set()

    async def next(self, timeout: float) -> JobEvent | None:
        """Return the next event; None when none came within `timeout` seconds, or none will
        come."""
        if not self._waiting and not self.is_over:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return None
        if not self._waiting:
            return None
        event = self._waiting.popleft()
        self._bytes -= len(event.body)
        return event


class EventHub:
    """Hands events to subscribers in this process, and remembers the latest."""

    def __init__(self, *, remembered: int = MAX_REMEMBERED) -> None:
        self._memory: deque[JobEvent] = deque()
        self._max_remembered = remembered
        self._bytes = 0
        self._subscriptions: set[Subscription] = set()
        self._is_ended = False

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    def close_subscriptions(self) -> None:
        """End every stream; clients connect again, perhaps to another process."""
        for subscription in self._subscriptions:
            subscription.close()

    def end(self) -> None:
        """End every stream, and those that begin later at once, as this process stops."""
        self._is_ended = True
        self.close_subscriptions()

    @contextmanager
    def subscribe(self, matches: Callable[[JobEvent], bool]) -> Iterator[Subscription]:
        """Yield a subscription to the events from now on, until the end of the block."""
        subscription = Subscription(matches)
        if self._is_ended:
            subscription.close()
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def since(self, last_id: str) -> tuple[list[JobEvent], bool]:
        """Return the remembered events after that one, and whether these are all that followed it.
        If the id is not remembered, return the events from its time on.
        """
        events = list(self._memory)
        for index, event in enumerate(events):
            if event.id == last_id:
                return events[index + 1 :], True
        at = _microseconds(last_id)
        if at is None:
            return events, False
        complete = bool(events) and int(events[0].at * 1_000_000) <= at
        return [each for each in events if int(each.at * 1_000_000) >= at], complete

    def deliver(self, event: JobEvent) -> None:
        """Remember an event, and give it to all subscriptions."""
        if event.name not in (PROGRESS, TEXT):
            self._memory.append(event)
            self._bytes += len(event.body)
        while len(self._memory) > self._max_remembered or self._bytes > MAX_REMEMBERED_BYTES:
            self._bytes -= len(self._memory.popleft().body)
        for subscription in tuple(self._subscriptions):
            subscription.offer(event)


class EventFeed(EventHub):
    """Consumes `jobs.events` by a queue of its own, and hands the events to subscribers."""

    def __init__(self, settings: BrokerSettings, *, remembered: int = MAX_REMEMBERED) -> None:
        super().__init__(remembered=remembered)
        self._log = structlog.get_logger("events")
        self._reconnector = Reconnector(settings.require_amqp_url(), "api events", self._log)
        self.is_listening = asyncio.Event()
        """Set while events arrive."""

    async def check(self) -> None:
        """Raise BrokerUnavailable while no events arrive."""
        if not self.is_listening.is_set():
            raise BrokerUnavailable(
                "not receiving job events from the broker", maybe_accepted=False
            )

    async def run(self) -> None:
        """Listen until cancelled. Reconnects after each loss of the broker."""
        try:
            await keep_listening(
                self._reconnector, self._listen, self._log, "job events not received"
            )
        finally:
            self.close_subscriptions()
            await self._reconnector.close()

    async def _listen(self, connection: Connection, reset_backoff: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def on_listening() -> None:
            reset_backoff()
            # Until then, publishers may still have cached that nobody listens.
            timers.append(loop.call_later(NO_LISTENER_TTL, self.is_listening.set))

        try:
            await consume_exchange(
                connection,
                on_listening,
                EVENTS_EXCHANGE,
                self._on_message,
                tag="events",
                routing_key="#",
            )
        finally:
            for each in timers:
                each.cancel()
            self.is_listening.clear()

    def _on_message(self, body: bytes) -> None:
        if not body:
            return  # from `Publisher.probe`, which tests whether the broker takes messages
        try:
            event = JobEvent.from_body(body)
        except ValueError as error:
            self._log.warning("job event invalid", error=str(error))
            return
        self.deliver(event)


def _microseconds(event_id: str) -> int | None:
    head = event_id.partition("-")[0]
    return int(head) if head.isascii() and head.isdigit() and len(head) < 20 else None
