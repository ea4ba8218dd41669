"""Run requests of `/v1` as jobs: wait for the answer, or stream it, while the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

import structlog
from fastapi import Header, Request, Response

from switchyard.api.engine.job_publishing import IdempotencyKey
from switchyard.api.engine.jobs import cancel_job
from switchyard.api.http.event_stream import (
    HEARTBEAT,
    MEDIA_TYPE,
    EventStream,
    wait_for_disconnect,
)
from switchyard.api.http.problems import JsonResponse, Problem
from switchyard.api.llm.key_limits import (
    NO_RETRY,
    AdmittedRequest,
    admit,
    allowed_priority,
    check_model_allowed,
    limits_of,
)
from switchyard.api.llm.llm_endpoints import request_queue, translate_refusals
from switchyard.api.middleware.access import StreamSlot, own_key, source_of
from switchyard.api.models import openai as models
from switchyard.api.state import ApiState
from switchyard.broker.message import MAX_PRIORITY
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.settings import Settings
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.llm.answer_follower import LlmText
from switchyard.services.llm.endpoint_requests import NO_RESPONSES_SERVER
from switchyard.services.llm.llm_queue import (
    LLMQueue,
    LlmResult,
    LlmStatus,
    RequestOptions,
    result_of,
)
from switchyard.services.llm.openai_form import (
    EMBEDDINGS_URL,
    ENDPOINTS,
    REFUSALS,
    RESPONSES_URL,
    answer_of,
)

Published = TypeVar("Published")

MAX_EXPIRES_IN = 7 * 24 * 3600.0
"""Maximum of X-Job-Expires-In, in seconds."""
DEFAULT_EXPIRES_IN = 600.0
"""Seconds after which a request expires by default: as long as OpenAI's clients wait."""

RequestBody = (
    models.ChatCompletionBody | models.EmbeddingsBody | models.CompletionBody | models.ResponsesBody
)


@dataclass(frozen=True, slots=True)
class OpenAiRunOptions:
    """Options for running a request, from its headers."""

    queue_options: RequestOptions
    expires_in: float
    is_background: bool
    """Whether the request goes on when its client has gone."""
    is_fresh: bool
    """Whether to ask the model again even if an answer is stored."""


async def run_options_of(
    request: Request,
    x_job_lane: Annotated[
        Literal["hot", "backfill"], Header(description="Lane of the request's job.")
    ] = "hot",
    x_job_priority: Annotated[
        int | None,
        Header(
            ge=0,
            le=MAX_PRIORITY,
            description="A higher number is answered first. Default: 5; in the lane backfill 1.",
        ),
    ] = None,
    x_job_expires_in: Annotated[
        float,
        Header(gt=0, le=MAX_EXPIRES_IN, description="Seconds after which nobody wants the answer."),
    ] = DEFAULT_EXPIRES_IN,
    x_job_background: Annotated[
        bool, Header(description="Go on when the client has gone.")
    ] = False,
    cache_control: Annotated[
        str | None,
        Header(max_length=200, description="`no-cache`: ask anew even if an answer is stored."),
    ] = None,
    idempotency_key: IdempotencyKey = None,
) -> OpenAiRunOptions:
    """Read the options of a request from its headers."""
    return OpenAiRunOptions(
        queue_options={
            "lane": x_job_lane,
            "priority": allowed_priority(limits_of(request), x_job_priority, x_job_lane),
            "expires_in": x_job_expires_in,
            "key": own_key(request, idempotency_key),
            "source": source_of(request, None),
        },
        expires_in=x_job_expires_in,
        is_background=x_job_background,
        is_fresh="no-cache" in (cache_control or "").lower(),
    )


class StreamWriter(Protocol):
    """Writes the stream of one answer."""

    def text(self, piece: LlmText) -> Iterator[bytes]:
        """Write a piece that has come, if it follows the pieces before it."""
        ...

    def end(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """Write the part of the complete answer that is not written yet, and the end."""
        ...

    def error(self, problem: Problem) -> bytes:
        """Write the error that ends a stream that has begun."""
        ...


class OpenAiRun:
    """One request of `/v1`, run as a job."""

    def __init__(
        self,
        url: str,
        body: RequestBody,
        inputs: Mapping[str, Any],
        options: OpenAiRunOptions,
        state: ApiState,
        request: Request,
    ) -> None:
        """Take the request to the endpoint `url`; `inputs` has its messages, texts or items."""
        self._url = url
        self._body = body
        self._fields = {**(body.model_extra or {}), "model": body.model, **inputs}
        self._options = options
        self._state = state
        self._request = request
        # With JOBS_LLM_DIRECT_CALLS, the API asks servers itself while no job waits. A service
        # without a broker refuses here, before the request is counted against its key's limits.
        self._queue: LLMQueue = state.direct_first or request_queue(state)

    async def answer(
        self, chunks_of: Callable[[dict[str, Any]], Iterable[bytes]] | None = None
    ) -> Response:
        """Wait for the answer, and return it; with `chunks_of`, as a stream of these chunks. If the
        client has gone, cancel the job. Raises Problem."""
        with StreamSlot(self._request):  # taken first: a request without a slot uses nothing up
            submission, admission = await self._publish(self._queue.open_request)
            job_id = submission.job_id
            with closing(submission):
                end_task = asyncio.create_task(
                    submission.wait_for_end(timeout=self._options.expires_in)
                )
                if not await self._ends_while_connected(end_task, job_id):
                    return Response()  # nobody reads it
            result = await self._result_of(await end_task, job_id, admission)
        headers = answer_headers(result, self._state.settings)
        if isinstance(self._body, models.EmbeddingsBody):  # vectors take long to encode
            encoding = {"encoding_format": self._body.encoding_format}
            vectors = await asyncio.to_thread(answer_of, self._url, encoding, result)
            return JsonResponse(vectors, headers=headers)
        answer = answer_of(self._url, {}, result)
        if chunks_of is None:
            return JsonResponse(answer, headers=headers)
        return Response(b"".join(chunks_of(answer)), headers=headers, media_type=MEDIA_TYPE)

    async def stream(self, make_writer: Callable[[str], StreamWriter]) -> Response:
        """Return the stream once its first event has come, so that a request that fails before is
        answered with an error. `make_writer` gets the job's id. Raises Problem."""
        async with AsyncExitStack() as cleanup:
            slot = StreamSlot(self._request)  # taken first: a request without one uses nothing up
            cleanup.callback(slot.leave)
            answer_stream, admission = await self._publish(self._queue.open_stream)
            cleanup.callback(answer_stream.close)
            job_id = answer_stream.job_id
            headers = {"X-Job-Id": job_id}
            end_wait = self._queue.wait_for_end(job_id, timeout=self._options.expires_in)
            heartbeat = self._state.settings.api_heartbeat
            events = answer_stream.follow(end_wait, heartbeat=heartbeat)
            cleanup.push_async_callback(events.aclose)
            first_event = asyncio.create_task(_next_event(events))
            if not await self._ends_while_connected(first_event, job_id):
                return Response()  # nobody reads it
            first = await first_event
            if isinstance(first, JobRecord):
                result = await self._result_of(first, job_id, admission)
                headers = answer_headers(result, self._state.settings)
            cleanup.pop_all()
        frames = self._frames(job_id, make_writer(job_id), _with_first(first, events), admission)

        def close() -> None:
            answer_stream.close()
            slot.leave()

        return EventStream(frames, closing=close, headers=headers)

    async def _publish(
        self, publish: Callable[..., Awaitable[Published]]
    ) -> tuple[Published, AdmittedRequest]:
        """Admit the request, and publish its job by `publish`, a method of the queue."""
        admission = await self._admit()
        endpoint, options = ENDPOINTS[self._url], self._options.queue_options
        payload = endpoint.payload(self._fields, fresh=self._options.is_fresh)
        async with admission.returned_on_error():
            with translate_refusals():
                return await publish(endpoint.job_type, payload, **options), admission

    async def _result_of(
        self, record: JobRecord | None, job_id: str, admission: AdmittedRequest
    ) -> LlmResult:
        """Return the result of the job, and charge the key the tokens used. Raises Problem if the
        request has ended or expired without an answer."""
        if record is None:
            result = LlmResult(job_id, LlmStatus.WAITING)
        else:
            result = result_of(record, self._state.ledger.clock.time())
        await admission.settle(result.result)
        check_answered(result)
        return result

    async def _admit(self) -> AdmittedRequest:
        """Check that a server has the model and the endpoint, and count the request against the
        limits of its key. Raises Problem (403, 404, 429)."""
        model, settings = self._body.model, self._state.settings
        check_model_allowed(limits_of(self._request), model)
        check_model(settings, model, embeds=self._url == EMBEDDINGS_URL)
        if self._url == RESPONSES_URL and not any(
            each.responses and each.serves(model) for each in settings.llm_servers
        ):
            code = "responses_not_supported"
            raise Problem("unknown-model", NO_RESPONSES_SERVER, headers=NO_RETRY, error_code=code)
        return await admit(self._state, self._request, body=self._fields)

    async def _ends_while_connected(self, task: asyncio.Task[Any], job_id: str) -> bool:
        """Wait for a task. If the client disconnects first, end the task and, unless it runs in the
        background, the job, and return False."""
        disconnect = asyncio.create_task(wait_for_disconnect(self._request.receive))
        try:
            await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
            has_ended = task.done()
        finally:
            await end_tasks(disconnect)
            if not task.done():
                await end_tasks(task)
        if not has_ended:
            await self._abandon(job_id)
        return has_ended

    async def _abandon(self, job_id: str) -> None:
        """Cancel the job of a client that has gone, unless it runs in the background."""
        if self._options.is_background:
            return
        try:
            await cancel_job(self._state, job_id)
        except (Problem, LedgerError) as error:
            structlog.get_logger("api").info(
                "request not cancelled", job_id=job_id, error=str(error)
            )

    async def _frames(
        self,
        job_id: str,
        writer: StreamWriter,
        events: AsyncGenerator[LlmText | JobRecord | None, None],
        admission: AdmittedRequest,
    ) -> AsyncGenerator[bytes, None]:
        has_ended = False
        record: JobRecord | None = None
        try:
            async with aclosing(events):
                async for each in events:
                    if each is None:
                        yield HEARTBEAT
                    elif isinstance(each, LlmText):
                        for frame in writer.text(each):
                            yield frame
                    else:
                        record = each
            has_ended = True
            result = await self._result_of(record, job_id, admission)
            for frame in writer.end(answer_of(self._url, {}, result)):
                yield frame
        except LedgerError as error:
            structlog.get_logger("api").warning("stream ended without answer", error=str(error))
            has_ended = True
            yield writer.error(
                Problem("ledger-away", "ask again: a stored answer is not paid again")
            )
        except Problem as problem:
            yield writer.error(problem)
        finally:
            if not has_ended:
                await self._abandon(job_id)


async def _next_event(
    events: AsyncGenerator[LlmText | JobRecord | None, None],
) -> LlmText | JobRecord | None:
    return await anext(events, None)


async def _with_first(
    first_event: LlmText | JobRecord | None,
    events: AsyncGenerator[LlmText | JobRecord | None, None],
) -> AsyncGenerator[LlmText | JobRecord | None, None]:
    yield first_event
    async with aclosing(events):
        async for each in events:
            yield each


def wants_usage(body: models.ChatCompletionBody | models.CompletionBody) -> bool:
    """Return whether the stream is to end with the tokens that were used."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def answer_headers(result: LlmResult, settings: Settings) -> dict[str, str]:
    """Return the headers with job, cache hit and cost of an answer."""
    completion = result.result or {}
    is_reused = bool(completion.get("answer_reused"))
    headers = {"X-Job-Id": result.job_id, "X-Cache": "HIT" if is_reused else "MISS"}
    prices = settings.prices
    price, usage = prices.of(completion.get("model", "")), completion.get("usage", {})
    if price is not None and (is_reused or usage):  # else the server has not counted its tokens
        cost = 0.0 if is_reused else price.cost(usage)
        headers["X-Job-Cost"] = f"{cost:.8f} {prices.currency}".rstrip()
    return headers


def check_answered(result: LlmResult) -> None:
    """Raise Problem if a request has ended or expired without an answer."""
    headers = {"X-Job-Id": result.job_id, **NO_RETRY}
    error = result.error or ""
    match result.status:
        case LlmStatus.COMPLETED:
            return
        case LlmStatus.TIMEOUT | LlmStatus.WAITING:
            text = error or "no answer in the time that the request had (X-Job-Expires-In)"
            raise Problem("not-answered", text, headers=headers)
        case LlmStatus.CANCELLED:
            raise Problem("request-cancelled", "the request was cancelled", headers=headers)
        case LlmStatus.FAILED:
            code = REFUSALS.get(result.error_type)
            if code is None:
                raise Problem("model-failed", error, headers=headers)
            raise Problem("model-refused", error, headers=headers, error_code=code)


# --- the models --------------------------------------------------------------------------------


def served_models(settings: Settings) -> list[models.ServedModel]:
    """Return the models of all servers, each once."""
    owners: dict[str, list[str]] = {}
    embedding_settings = settings.for_embeddings
    for server in (
        *settings.llm_servers,
        *(embedding_settings.llm_servers if embedding_settings else ()),
    ):
        for name in (server.model, *server.aliases):
            owners.setdefault(name, []).append(server.name)
    return [
        models.ServedModel(id=name, owned_by=", ".join(dict.fromkeys(server_names)))
        for name, server_names in owners.items()
    ]


def check_model(settings: Settings, model: str, *, embeds: bool = False) -> None:
    """Raise Problem if no server has the model; with `embeds`, the server of JOBS_EMBED_BASE_URL
    counts, too."""
    servers = settings.llm_servers
    if embeds and settings.for_embeddings is not None:
        servers += settings.for_embeddings.llm_servers
    if any(each.serves(model) for each in servers):
        return
    served_names = ", ".join(each.id for each in served_models(settings)[:10])
    advice = (
        f"one of: {served_names}" if served_names else "the operator has to set JOBS_LLM_BASE_URL"
    )
    raise Problem("unknown-model", f"no server has the model {model!r}; {advice}")
