"""Run requests of `/v1` as jobs: wait for the answer, or stream it, while the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import structlog
from fastapi import Header, Request

from switchyard.api.engine.job_publishing import IdempotencyKey
from switchyard.api.engine.jobs import cancel_job
from switchyard.api.http.event_stream import (
    HEARTBEAT,
    EventStream,
    wait_for_disconnect,
)
from switchyard.api.http.problems import Problem
from switchyard.api.llm.key_limits import (
    NO_RETRY,
    AdmittedRequest,
    admit,
    allowed_priority,
    check_model_allowed,
    limits_of,
)
from switchyard.api.llm.llm import request_queue, translate_refusals
from switchyard.api.middleware.access import StreamSlot, own_key, source_of
from switchyard.api.models import openai as models
from switchyard.api.state import ApiState
from switchyard.broker.message import MAX_PRIORITY
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.settings import Settings
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.llm.answer_follower import LlmText
from switchyard.services.llm.llm_queue import LLMQueue, LlmResult, LlmStatus, result_of
from switchyard.services.llm.openai_form import (
    EMBEDDINGS_URL,
    ENDPOINTS,
    REFUSALS,
    answer_of,
)

MAX_EXPIRES_IN = 7 * 24 * 3600.0
"""Maximum of X-Job-Expires-In, in seconds."""
DEFAULT_EXPIRES_IN = 600.0
"""Seconds after which a request expires by default: as long as OpenAI's clients wait."""

RequestBody = (
    models.ChatCompletionRequest
    | models.EmbeddingsBody
    | models.CompletionRequest
    | models.ResponsesBody
)


@dataclass(frozen=True, slots=True)
class OpenAiRunOptions:
    """Options for running a request, from its headers."""

    lane: str
    priority: int
    expires_in: float
    is_background: bool
    """Whether the request goes on when its client has gone."""
    is_fresh: bool
    """Whether to ask the model again even if an answer is stored."""
    source: str
    idempotency_key: str | None

    @property
    def queue_arguments(self) -> dict[str, Any]:
        """Return the arguments for the methods of `LLMQueue`."""
        return {
            "lane": self.lane,
            "priority": self.priority,
            "expires_in": self.expires_in,
            "key": self.idempotency_key,
            "source": self.source,
        }


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
        lane=x_job_lane,
        priority=allowed_priority(limits_of(request), x_job_priority, x_job_lane),
        expires_in=x_job_expires_in,
        is_background=x_job_background,
        is_fresh="no-cache" in (cache_control or "").lower(),
        source=source_of(request, None),
        idempotency_key=own_key(request, idempotency_key),
    )


def _queue_of(state: ApiState) -> LLMQueue:
    """Return the queue of requests in OpenAI's form, which asks servers itself while nothing waits
    where JOBS_LLM_DIRECT_CALLS says so. Raises Problem as `request_queue` does."""
    return state.direct_first or request_queue(state)


# --- the whole answer -----------------------------------------------------------------------------


async def run_request(
    job_type: str,
    payload: Mapping[str, Any],
    run_options: OpenAiRunOptions,
    state: ApiState,
    request: Request,
    admitted_request: AdmittedRequest,
) -> LlmResult | None:
    """Run a request, and return its result; None when the client has gone. Raises Problem."""
    queue = _queue_of(state)
    async with admitted_request.returned_on_error():
        with translate_refusals():
            submitted = await queue.open_request(job_type, payload, **run_options.queue_arguments)
    job_id = submitted.job_id
    with closing(submitted):
        ending = asyncio.create_task(submitted.wait_for_end(timeout=run_options.expires_in))
        if not await _ends_while_connected(request, ending):
            await _abandon(state, job_id, run_options)
            return None
    result = _to_result(await ending, job_id, state)
    await admitted_request.settle(result.result)
    check_answered(result)
    return result


async def run_endpoint_request(
    url: str,
    body: models.EmbeddingsBody | models.CompletionRequest | models.ResponsesBody,
    question: Mapping[str, Any],
    run_options: OpenAiRunOptions,
    state: ApiState,
    request: Request,
) -> LlmResult | None:
    """Run a request to an endpoint other than chats, as `run_request` does."""
    with StreamSlot(request):  # before it counts: a request without a slot uses nothing up
        admitted_request = await admit_request(
            body, question, state, request, embeds=url == EMBEDDINGS_URL
        )
        payload = job_payload_of(url, body, question, run_options)
        return await run_request(
            ENDPOINTS[url].job_type, payload, run_options, state, request, admitted_request
        )


async def admit_request(
    body: RequestBody,
    question: Mapping[str, Any],
    state: ApiState,
    request: Request,
    *,
    embeds: bool = False,
) -> AdmittedRequest:
    """Check that a server has the model, and count the request against the limits of its key.
    Raises Problem (403, 404, 429)."""
    check_model_allowed(limits_of(request), body.model)
    check_model(state.settings, body.model, embeds=embeds)
    fields = {**(body.model_extra or {}), "model": body.model, **question}
    return await admit(state, request, body=fields)


def job_payload_of(
    url: str,
    body: RequestBody,
    question: Mapping[str, Any],
    run_options: OpenAiRunOptions,
) -> dict[str, Any]:
    fields = {"model": body.model, **question, **(body.model_extra or {})}
    return ENDPOINTS[url].payload(fields, fresh=run_options.is_fresh)


def shows_usage_of(body: models.ChatCompletionRequest | models.CompletionRequest) -> bool:
    """Return whether the stream is to end with the tokens that were used."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def answer_headers(result: LlmResult, settings: Settings) -> dict[str, str]:
    """Return the headers with job, cache hit and cost of an answer."""
    completion = result.result or {}
    is_reused = bool(completion.get("answer_reused"))
    headers = {"X-Job-Id": result.job_id, "X-Cache": "HIT" if is_reused else "MISS"}
    prices = settings.prices
    price = prices.of(completion.get("model", ""))
    if price is not None:
        cost = 0.0 if is_reused else price.cost(completion.get("usage", {}))
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


def _to_result(record: JobRecord | None, job_id: str, state: ApiState) -> LlmResult:
    if record is None:
        return LlmResult(job_id, LlmStatus.WAITING)
    return result_of(record, state.ledger.clock.time())


async def _ends_while_connected(request: Request, result: asyncio.Task[Any]) -> bool:
    """Wait for a result. If the client disconnects first, cancel the task and return False."""
    disconnect = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
        return result.done()
    finally:
        await end_tasks(disconnect)
        if not result.done():
            await end_tasks(result)


async def _abandon(state: ApiState, job_id: str, run_options: OpenAiRunOptions) -> None:
    """Cancel the request of a client that has gone, unless it runs in the background."""
    if run_options.is_background:
        return
    try:
        await cancel_job(state, job_id)
    except (Problem, LedgerError) as error:
        structlog.get_logger("api").info("request not cancelled", job_id=job_id, why=str(error))


# --- the answer as it is written ------------------------------------------------------------------


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


async def start_stream(
    url: str,
    payload: Mapping[str, Any],
    run_options: OpenAiRunOptions,
    state: ApiState,
    request: Request,
    slot: StreamSlot,
    admitted_request: AdmittedRequest,
    make_writer: Callable[[str], StreamWriter],
) -> EventStream | None:
    """Return the stream once its first event has come, so that a request that fails before is
    answered with an error; None when the client has gone. `make_writer` gets the job's id. Raises
    Problem."""
    queue = _queue_of(state)
    job_type = ENDPOINTS[url].job_type
    async with admitted_request.returned_on_error():
        with translate_refusals():
            answer_stream = await queue.open_stream(
                job_type, payload, **run_options.queue_arguments
            )
    job_id = answer_stream.job_id
    headers = {"X-Job-Id": job_id}
    ending = queue.wait_for_end(job_id, timeout=run_options.expires_in)
    events = answer_stream.follow(ending, heartbeat=state.settings.api_heartbeat)
    async with AsyncExitStack() as cleanup:
        cleanup.callback(answer_stream.close)
        cleanup.push_async_callback(events.aclose)
        first_event = asyncio.create_task(_next_event(events))
        if not await _ends_while_connected(request, first_event):
            await _abandon(state, job_id, run_options)
            return None
        first = await first_event
        if isinstance(first, JobRecord):
            result = _to_result(first, job_id, state)
            await admitted_request.settle(first.result)
            check_answered(result)
            headers = answer_headers(result, state.settings)
        cleanup.pop_all()
    frames = _stream_frames(
        url,
        state,
        job_id,
        make_writer(job_id),
        _with_first(first, events),
        run_options,
        admitted_request,
    )

    def close() -> None:
        answer_stream.close()
        slot.leave()

    return EventStream(frames, closing=close, headers=headers)


async def _next_event(
    events: AsyncGenerator[LlmText | JobRecord | None, None],
) -> LlmText | JobRecord | None:
    return await anext(events, None)


async def _with_first(
    first: LlmText | JobRecord | None, events: AsyncGenerator[LlmText | JobRecord | None, None]
) -> AsyncGenerator[LlmText | JobRecord | None, None]:
    yield first
    async with aclosing(events):
        async for each in events:
            yield each


async def _stream_frames(
    url: str,
    state: ApiState,
    job_id: str,
    writer: StreamWriter,
    events: AsyncGenerator[LlmText | JobRecord | None, None],
    run_options: OpenAiRunOptions,
    admitted_request: AdmittedRequest,
) -> AsyncGenerator[bytes, None]:
    is_ended = False
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
        is_ended = True
        result = _to_result(record, job_id, state)
        await admitted_request.settle(result.result)
        check_answered(result)
        for frame in writer.end(answer_of(url, {}, result)):
            yield frame
    except LedgerError as error:
        structlog.get_logger("api").warning("stream ended without answer", error=str(error))
        is_ended = True
        yield writer.error(Problem("ledger-away", "ask again: a stored answer is not paid again"))
    except Problem as problem:
        yield writer.error(problem)
    finally:
        if not is_ended:
            await _abandon(state, job_id, run_options)


# --- the models --------------------------------------------------------------------------------


def served_models(settings: Settings) -> list[models.ServedModel]:
    """Return the models of all servers, each once."""
    owners: dict[str, list[str]] = {}
    search = settings.for_embeddings
    for server in (*settings.llm_servers, *(search.llm_servers if search else ())):
        for name in (server.model, *server.aliases):
            owners.setdefault(name, []).append(server.name)
    return [
        models.ServedModel(id=name, owned_by=", ".join(dict.fromkeys(servers)))
        for name, servers in owners.items()
    ]


def check_model(settings: Settings, model: str, *, embeds: bool = False) -> None:
    """Raise Problem if no server has the model; with `embeds`, the server of JOBS_EMBED_BASE_URL
    counts, too."""
    servers = settings.llm_servers
    if embeds and settings.for_embeddings is not None:
        servers += settings.for_embeddings.llm_servers
    if any(each.serves(model) for each in servers):
        return
    known = ", ".join(each.id for each in served_models(settings)[:10])
    advice = f"one of: {known}" if known else "the operator has to set JOBS_LLM_BASE_URL"
    raise Problem("unknown-model", f"no server has the model {model!r}; {advice}")
