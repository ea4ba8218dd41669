"""Send requests to language models from a program, through the lanes, and wait for the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

import structlog

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.errors import NotFoundError
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.job_end import EndListener, wait_for_end
from switchyard.services.engine.monitoring.job_events import EventFeed, EventHub
from switchyard.services.engine.monitoring.lane_pressure import LanePressure
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.publishing.requests import job_id_for
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.llm.answer_follower import AnswerStream, LlmText
from switchyard.services.llm.direct_requests import DirectRequests

Listener = TypeVar("Listener", EndListener, AnswerStream)

SUBSCRIBE_TIMEOUT = 10.0
"""Seconds to wait for the broker's events at the start; without them, answers come later."""


class LlmStatus(StrEnum):
    """State of a request."""

    WAITING = "waiting"
    """The request has not ended: ask again later."""
    COMPLETED = "completed"
    TIMEOUT = "timeout"
    """The request expired before it was answered. It cost nothing unless a server had been
    asked."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class LlmResult:
    """The result of a request."""

    job_id: str
    status: LlmStatus
    result: Mapping[str, Any] | None = None
    """`text`, `value` if there is a schema, `model`, `usage`, …; None unless completed."""
    error: str | None = None
    error_type: str | None = None
    """Class of the error that ended it (`services.llm.llm_errors`)."""

    @property
    def text(self) -> str | None:
        """The answer as the model wrote it."""
        return None if self.result is None else self.result.get("text")

    @property
    def value(self) -> Any:
        """The answer as JSON that fits the schema; None without a schema."""
        return None if self.result is None else self.result.get("value")


class UnknownLlmRequest(NotFoundError):
    """There is no request of that id."""


def result_of(record: JobRecord, now: float) -> LlmResult:
    """Return the result of a request by its job's record; `now` is the ledger's time. An expired
    request is TIMEOUT even if its worker has not recorded that yet."""
    status = LlmStatus.WAITING
    match record.state:
        case State.SUCCEEDED:
            return LlmResult(record.id, LlmStatus.COMPLETED, record.result or {})
        case State.CANCELLED:
            status = LlmStatus.CANCELLED
        case State.DEAD:
            is_expired = record.reason == Reason.EXPIRED
            status = LlmStatus.TIMEOUT if is_expired else LlmStatus.FAILED
        case _ if record.expires_at is not None and record.expires_at <= now:
            last_error = f": {record.error_message}" if record.error_message else ""
            return LlmResult(record.id, LlmStatus.TIMEOUT, error=f"no answer in time{last_error}")
    return LlmResult(record.id, status, error=record.error_message, error_type=record.error_type)


class RequestBackend(Protocol):
    """Runs requests: through the lanes (QueuedRequests), or in this process (DirectRequests)."""

    @property
    def hub(self) -> EventHub:
        """Hands on the events of jobs, such as the text that they write."""
        ...

    async def publish(self, request: JobRequest) -> Published: ...

    async def wait_for_end(
        self, job_id: str, *, timeout: float, listener: EndListener | None = None
    ) -> JobRecord | None: ...

    def cancel(self, job_id: str) -> bool:
        """Stop a request that runs in this process; False when it does not run here."""
        ...


class QueuedRequests:
    """Runs requests through the lanes, where the workers answer."""

    def __init__(self, ledger: Ledger, jobs: JobPublisher, feed: EventFeed) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._feed = feed

    @property
    def hub(self) -> EventHub:
        return self._feed

    async def publish(self, request: JobRequest) -> Published:
        return await self._jobs.publish(request)

    async def wait_for_end(
        self, job_id: str, *, timeout: float, listener: EndListener | None = None
    ) -> JobRecord | None:
        return await wait_for_end(
            self._feed, self._ledger, job_id, timeout=timeout, listener=listener
        )

    def cancel(self, job_id: str) -> bool:
        return False


class SubmittedRequest:
    """A published request, with a listener for its end; `close` it when done."""

    def __init__(
        self, backend: RequestBackend, published: Published, listener: EndListener
    ) -> None:
        self.job_id = published.job_id
        self._is_new = not published.duplicate
        self._backend = backend
        self._listener = listener

    def close(self) -> None:
        self._listener.close()

    async def wait_for_end(self, *, timeout: float) -> JobRecord | None:
        """Wait until the request has ended, or for `timeout` seconds, and return its record.
        Raises LedgerError."""
        # An earlier request under the same key may have ended already.
        listener = self._listener if self._is_new else None
        return await self._backend.wait_for_end(self.job_id, timeout=timeout, listener=listener)


class RequestOptions(TypedDict, total=False):
    """Options of a request that is sent."""

    lane: str
    """`hot`, the default, or `backfill`."""
    priority: int | None
    expires_in: float | None
    """Seconds after which it is not answered any more."""
    key: str | None
    """Idempotency key: a second request with it is the same job."""
    source: str
    """Name of the client, for fairness and cost reports."""


class LLMQueue:
    """Send requests through the lanes to workers; with JOBS_LLM_DIRECT, run them in this process,
    without a broker. Open it with `LLMQueue.open`."""

    def __init__(self, ledger: Ledger, backend: RequestBackend) -> None:
        self._ledger = ledger
        self._backend = backend

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings | None = None) -> AsyncIterator[LLMQueue]:
        """Open a queue at the broker and ledger of the settings (JOBS_…); it is closed at the end.
        Requests that this process asks directly and that have no answer by then are cancelled."""
        settings = settings or Settings()
        registry = Registry.load(dict.fromkeys((*job_modules(), *settings.modules)))
        if settings.llm_direct:
            async with (
                await Ledger.open(settings.ledger_url, check=True) as ledger,
                cls.direct(settings, registry, ledger) as queue,
            ):
                yield queue
            return
        log = structlog.get_logger("llm")
        feed = EventFeed(settings)
        background = TaskSupervisor(log)
        async with (
            await Ledger.open(settings.ledger_url, check=True) as ledger,
            Publisher(settings, name="llm queue") as publisher,
            LanePressure(settings, registry, ledger=ledger) as pressure,
        ):
            background.start("event feed", feed.run)
            try:
                try:
                    async with asyncio.timeout(SUBSCRIBE_TIMEOUT):
                        await feed.is_listening.wait()
                except TimeoutError:
                    log.warning("job events not received yet")
                fair_from = settings.fair_from
                jobs = JobPublisher(
                    registry, ledger, publisher, pressure=pressure, fair_from=fair_from
                )
                yield cls(ledger, QueuedRequests(ledger, jobs, feed))
            finally:
                await background.close()

    @classmethod
    @asynccontextmanager
    async def direct(
        cls,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        metrics: Metrics | None = None,
    ) -> AsyncIterator[LLMQueue]:
        """Open a queue whose requests this process runs itself, whatever JOBS_LLM_DIRECT says;
        `metrics` count them."""
        async with DirectRequests.open(settings, registry, ledger, metrics) as requests:
            yield cls(ledger, requests)

    async def submit(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        **options: Unpack[RequestOptions],
    ) -> str:
        """Send a request, and return the job's id.

        Raises InvalidPayload, UnknownJobType, InvalidJob, PublishError, LedgerError.
        """
        return (await self._publish(job_type, payload, **options)).job_id

    async def open_request(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        **options: Unpack[RequestOptions],
    ) -> SubmittedRequest:
        """Send a request to wait for its end at once; close it when done. Raises as `submit`."""
        listener, published = await self._publish_with_listener(
            EndListener, job_type, payload, options
        )
        return SubmittedRequest(self._backend, published, listener)

    async def open_stream(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        **options: Unpack[RequestOptions],
    ) -> AnswerStream:
        """Send a request whose answer is streamed as it is written. Read it with
        `AnswerStream.follow`, and close it. Raises as `submit`."""
        payload = {**payload, "stream": True}
        answer_stream, published = await self._publish_with_listener(
            AnswerStream, job_type, payload, options
        )
        if published.job_id == answer_stream.job_id:
            return answer_stream
        answer_stream.close()
        return AnswerStream(self._backend.hub, published.job_id)

    async def _publish_with_listener(
        self,
        listen: Callable[[EventHub, str], Listener],
        job_type: str,
        payload: Mapping[str, Any],
        options: RequestOptions,
    ) -> tuple[Listener, Published]:
        """Publish a request, and return it with the listener for the job's events, which `listen`
        makes before."""
        ids = await self._ledger.system.job_ids()
        job_id = job_id_for(ids, options.get("key"), job_type, payload)
        listener = listen(self._backend.hub, job_id)
        try:
            return listener, await self._publish(job_type, payload, job_id=job_id, **options)
        except BaseException:
            listener.close()
            raise

    async def _publish(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        *,
        job_id: str | None = None,
        lane: str = "hot",
        priority: int | None = None,
        expires_in: float | None = None,
        key: str | None = None,
        source: str = "python",
    ) -> Published:
        expires_at = None
        if expires_in is not None:
            expires_at = self._ledger.clock.now() + timedelta(seconds=expires_in)
        request = JobRequest(
            f"{lane}.{job_type}",
            payload,
            priority=priority,
            source=source,
            expires_at=expires_at,
            idempotency_key=key,
            job_id=job_id,
        )
        return await self._backend.publish(request)

    async def wait_for_end(self, job_id: str, *, timeout: float) -> JobRecord | None:
        """Wait until a request has ended, or for `timeout` seconds, and return its record; None if
        there is none."""
        return await self._backend.wait_for_end(job_id, timeout=timeout)

    def cancel(self, job_id: str) -> bool:
        """Stop a request that runs in this process, and whose cancellation is recorded; False when
        it does not run here."""
        return self._backend.cancel(job_id)

    async def stream(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        *,
        timeout: float = 600.0,
        lane: str = "hot",
        priority: int | None = None,
        source: str = "python",
    ) -> AsyncGenerator[LlmText | LlmResult, None]:
        """Send a request that expires after `timeout` seconds. Yields its answer piece by piece as
        it is written, and last its result, with the complete answer. A stored answer has no pieces.
        Leaving the iterator early does not stop the request.

        Raises as `submit` and `result`.
        """
        answer_stream = await self.open_stream(
            job_type, payload, lane=lane, priority=priority, expires_in=timeout, source=source
        )
        try:
            end = self.wait_for_end(answer_stream.job_id, timeout=timeout)
            async with aclosing(answer_stream.follow(end)) as events:
                async for each in events:
                    if isinstance(each, JobRecord):
                        yield self._result_of(each)
                    elif each is not None:
                        yield each
        finally:
            answer_stream.close()

    async def result(self, job_id: str, *, timeout: float = 600.0) -> LlmResult:
        """Wait for the result of a request; its status is WAITING if it has not ended after
        `timeout` seconds. Raises UnknownLlmRequest, LedgerError."""
        record = await self._backend.wait_for_end(job_id, timeout=timeout)
        if record is None:
            raise UnknownLlmRequest(f"there is no request {job_id}")
        return self._result_of(record)

    def _result_of(self, record: JobRecord) -> LlmResult:
        return result_of(record, self._ledger.clock.time())

    async def call(
        self,
        job_type: str,
        payload: Mapping[str, Any],
        *,
        timeout: float = 600.0,
        lane: str = "hot",
        priority: int | None = None,
        source: str = "python",
    ) -> LlmResult:
        """Send a request that expires after `timeout` seconds, and wait for its end.

        Raises as `submit` and `result`.
        """
        job_id = await self.submit(
            job_type, payload, lane=lane, priority=priority, expires_in=timeout, source=source
        )
        return await self.result(job_id, timeout=timeout)
