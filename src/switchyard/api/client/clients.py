"""`Client` and `AsyncClient`: calls sent over HTTP, waiting, and following events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

import httpx

from switchyard.api.client import calls
from switchyard.api.client.call import Call, Upload, in_path
from switchyard.api.client.client_base import ClientBase, poll_intervals
from switchyard.api.client.errors import ApiError, error_of, unreachable_error
from switchyard.api.client.operations import streams
from switchyard.api.client.sse import Event, EventReader, ReconnectBackoff, check_stream
from switchyard.broker.forking import OwnerProcess
from switchyard.services.engine.records.states import FINISHED
from switchyard.services.pipeline.records.documents import FAILED, FINISHED_STATES

if TYPE_CHECKING:
    from switchyard.api.models.documents import DocumentView
    from switchyard.api.models.jobs import JobDetails

MAX_RECONNECTS = 8
"""Failed attempts in a row after which a stream of events is not opened again."""

T = TypeVar("T")


class Client(ClientBase):
    """The API, for programs without an event loop. Safe to use from several threads."""

    is_async: Literal[False] = False

    def _open(self, **options: Any) -> None:
        self._options = options
        self._of_the_parent: list[httpx.Client] = []
        self._owner, self._http = OwnerProcess(), httpx.Client(**options)

    def _own_http(self) -> httpx.Client:
        """Return the connections of this process. A forked child opens its own, and holds on to its
        parent's, which might be closed if they were garbage-collected."""
        if not self._owner.is_current:
            self._of_the_parent.append(self._http)
            self._owner, self._http = OwnerProcess(), httpx.Client(**self._options)
        return self._http

    def close(self) -> None:
        self._own_http().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, call: Call[T]) -> T:
        """Make any call, also of an operation that has no method here. Raises ApiError."""
        for tries in count():
            try:
                return self._once(call)
            except ApiError as error:
                pause = self._retries.pause(call, tries, error)
                if pause is None:
                    raise
            time.sleep(pause)
        raise AssertionError  # it counts without an end

    def _once(self, call: Call[T]) -> T:
        with call.opened() as file:
            try:
                answer = self._own_http().request(**self._arguments(call, file))
            except httpx.RequestError as error:
                raise unreachable_error(error, self.base_url) from error
        return self._result(call, answer)

    # --- waiting and following ----------------------------------------------------------------

    def wait(self, job_id: str, *, timeout: float | None = None) -> JobDetails:
        """Return the job as soon as it has ended, well or not. Raises WaitTimeout after `timeout`
        seconds; None waits for ever."""
        for pause in poll_intervals(f"job {job_id}", timeout):
            if self.job_status(job_id).state in FINISHED:
                break
            time.sleep(pause)
        return self.job(job_id)

    def wait_for_document(self, document_id: str, *, timeout: float | None = None) -> DocumentView:
        """Return the document once it is finished or has failed. Raises WaitTimeout."""
        for pause in poll_intervals(f"document {document_id}", timeout):
            document = self.document(document_id)
            if _has_ended(document):
                return document
            time.sleep(pause)
        raise AssertionError

    def text_of(self, file: Upload, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the text of a file, page by page. Raises Conflict or Invalid if it can't be read,
        WaitTimeout."""
        ordered = self.extract_text(file)
        if ordered.result is not None:
            return ordered.result
        self.wait(ordered.job_id, timeout=timeout)
        return self.extracted_text(ordered.job_id)

    @streams("events-follow")
    def events(
        self,
        *,
        lane: str | None = None,
        job_type: str | None = None,
        last_event_id: str | None = None,
        reconnects: int = MAX_RECONNECTS,
    ) -> Generator[Event, None, None]:
        """Yield what happens to all jobs, or to those of a lane or type, without an end.

        A stream that is cut is opened again after the last event that came.
        """
        query = {"lane": lane, "job_type": job_type}
        return self._follow("/events", query, last_event_id, reconnects)

    @streams("events-follow_job")
    def job_events(
        self, job_id: str, *, last_event_id: str | None = None, reconnects: int = MAX_RECONNECTS
    ) -> Generator[Event, None, None]:
        """Yield what happens to one job: from `state` to `end`; `state` is repeated after the
        stream was cut."""
        path = f"/jobs/{in_path(job_id)}/events"
        return self._follow(path, {}, last_event_id, reconnects)

    @streams("llm-ask")
    def stream_llm(
        self, payload: Mapping[str, Any], **asked: Unpack[calls.llm.AskStreamOptions]
    ) -> Generator[Event, None, None]:
        """Ask a language model, and yield its events: `accepted` (with `job_id`), `text` (a part of
        the answer, with its `offset`), `end` (the whole answer, as `ask` returns it). A stream that
        is cut is not opened again: call `answer(job_id)` then."""
        call = calls.llm.ask.call(payload, **asked)
        reader = EventReader()
        params = {"stream": "true"}
        with closing(self._lines("POST", call.path, params, None, call.json)) as lines:
            for line in lines:
                event = reader.feed(line)
                if event is not None:
                    yield event

    def _follow(
        self, path: str, query: dict[str, str | None], last_id: str | None, reconnects: int
    ) -> Generator[Event, None, None]:
        reader, backoff = EventReader(last_id), ReconnectBackoff(reconnects)
        params = {name: value for name, value in query.items() if value is not None}
        while True:
            failure: ApiError | None = None
            try:
                with closing(self._lines("GET", path, params, reader.last_id)) as lines:
                    for line in lines:
                        backoff.restore()
                        event = reader.feed(line)
                        if event is not None:
                            yield event
                            if event.name == "end":
                                return
            except ApiError as error:
                failure = error
            reader.drop_partial_event()
            time.sleep(backoff.pause(failure))

    def _lines(
        self,
        method: str,
        path: str,
        params: dict[str, str],
        last_id: str | None,
        json: Any = None,
    ) -> Generator[str, None, None]:
        options = self._stream_options(last_id) | ({} if json is None else {"json": json})
        try:
            with self._own_http().stream(method, path, params=params, **options) as answer:
                if not answer.is_success:
                    answer.read()
                    raise error_of(answer)
                check_stream(answer)
                yield from answer.iter_lines()
        except httpx.RequestError as error:
            raise unreachable_error(error, self.base_url) from error


class AsyncClient(ClientBase):
    """The API, for programs with an event loop. Close what it iterates with `aclosing` where you
    leave it early."""

    is_async: Literal[True] = True

    def _open(self, **options: Any) -> None:
        self._options = options
        self._of_the_parent: list[httpx.AsyncClient] = []
        self._owner, self._http = OwnerProcess(), httpx.AsyncClient(**options)

    def _own_http(self) -> httpx.AsyncClient:
        """Return the connections of this process. A forked child opens its own, and holds on to its
        parent's, which might be closed if they were garbage-collected."""
        if not self._owner.is_current:
            self._of_the_parent.append(self._http)
            self._owner, self._http = OwnerProcess(), httpx.AsyncClient(**self._options)
        return self._http

    async def close(self) -> None:
        await self._own_http().aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(self, call: Call[T]) -> T:
        """Make any call, also of an operation that has no method here. Raises ApiError."""
        for tries in count():
            try:
                return await self._once(call)
            except ApiError as error:
                pause = self._retries.pause(call, tries, error)
                if pause is None:
                    raise
            await _sleep(pause)
        raise AssertionError  # it counts without an end

    async def _once(self, call: Call[T]) -> T:
        with call.opened() as file:
            try:
                answer = await self._own_http().request(**self._arguments(call, file))
            except httpx.RequestError as error:
                raise unreachable_error(error, self.base_url) from error
        return self._result(call, answer)

    # --- waiting and following ----------------------------------------------------------------

    async def wait(self, job_id: str, *, timeout: float | None = None) -> JobDetails:
        """As Client.wait."""
        for pause in poll_intervals(f"job {job_id}", timeout):
            if (await self.job_status(job_id)).state in FINISHED:
                break
            await _sleep(pause)
        return await self.job(job_id)

    async def wait_for_document(
        self, document_id: str, *, timeout: float | None = None
    ) -> DocumentView:
        """As Client.wait_for_document."""
        for pause in poll_intervals(f"document {document_id}", timeout):
            document = await self.document(document_id)
            if _has_ended(document):
                return document
            await _sleep(pause)
        raise AssertionError

    async def text_of(self, file: Upload, *, timeout: float | None = None) -> dict[str, Any]:
        """As Client.text_of."""
        ordered = await self.extract_text(file)
        if ordered.result is not None:
            return ordered.result
        await self.wait(ordered.job_id, timeout=timeout)
        return await self.extracted_text(ordered.job_id)

    @streams("events-follow")
    def events(
        self,
        *,
        lane: str | None = None,
        job_type: str | None = None,
        last_event_id: str | None = None,
        reconnects: int = MAX_RECONNECTS,
    ) -> AsyncGenerator[Event, None]:
        """As Client.events."""
        query = {"lane": lane, "job_type": job_type}
        return self._follow("/events", query, last_event_id, reconnects)

    @streams("events-follow_job")
    def job_events(
        self, job_id: str, *, last_event_id: str | None = None, reconnects: int = MAX_RECONNECTS
    ) -> AsyncGenerator[Event, None]:
        """As Client.job_events."""
        path = f"/jobs/{in_path(job_id)}/events"
        return self._follow(path, {}, last_event_id, reconnects)

    @streams("llm-ask")
    async def stream_llm(
        self, payload: Mapping[str, Any], **asked: Unpack[calls.llm.AskStreamOptions]
    ) -> AsyncGenerator[Event, None]:
        """As Client.stream_llm."""
        call = calls.llm.ask.call(payload, **asked)
        reader = EventReader()
        params = {"stream": "true"}
        async with aclosing(self._lines("POST", call.path, params, None, call.json)) as lines:
            async for line in lines:
                event = reader.feed(line)
                if event is not None:
                    yield event

    async def _follow(
        self, path: str, query: dict[str, str | None], last_id: str | None, reconnects: int
    ) -> AsyncGenerator[Event, None]:
        reader, backoff = EventReader(last_id), ReconnectBackoff(reconnects)
        params = {name: value for name, value in query.items() if value is not None}
        while True:
            failure: ApiError | None = None
            try:
                async with aclosing(self._lines("GET", path, params, reader.last_id)) as lines:
                    async for line in lines:
                        backoff.restore()
                        event = reader.feed(line)
                        if event is not None:
                            yield event
                            if event.name == "end":
                                return
            except ApiError as error:
                failure = error
            reader.drop_partial_event()
            await _sleep(backoff.pause(failure))

    async def _lines(
        self,
        method: str,
        path: str,
        params: dict[str, str],
        last_id: str | None,
        json: Any = None,
    ) -> AsyncGenerator[str, None]:
        options = self._stream_options(last_id) | ({} if json is None else {"json": json})
        try:
            async with self._own_http().stream(method, path, params=params, **options) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer)
                check_stream(answer)
                async for line in answer.aiter_lines():
                    yield line
        except httpx.RequestError as error:
            raise unreachable_error(error, self.base_url) from error


def _has_ended(document: DocumentView) -> bool:
    return document.state in FINISHED_STATES or document.state == FAILED


async def _sleep(seconds: float) -> None:
    import asyncio  # here: Client does without, and it is a fifteenth of the client's import time

    await asyncio.sleep(seconds)
