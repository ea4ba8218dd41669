"""`/llm/…`: questions to language models, whose answers a client may wait for; and their cost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager, nullcontext
from datetime import date, timedelta
from typing import Annotated, Any

import structlog
from fastapi import Header, Query, Request, Response

from switchyard.api.engine.job_publishing import (
    ACCEPTED_HEADERS,
    IdempotencyKey,
    prepare_job,
    publish_job,
    require_same_request,
    set_pressure_header,
)
from switchyard.api.engine.jobs import JobIdInPath
from switchyard.api.http.event_stream import HEARTBEAT, MEDIA_TYPE, EventStream, frame
from switchyard.api.http.problems import lane_full, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import StreamSlot, needs, own_key, source_of
from switchyard.api.models import llm as models
from switchyard.api.state import ApiState, Shared
from switchyard.api.views.llm import view_answer, view_spending
from switchyard.broker.errors import LaneFull
from switchyard.broker.lanes import lane_named
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.jobs.registry import InvalidPayload, UnknownJobType
from switchyard.services.engine.monitoring.job_end import wait_for_end
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.publishing.requests import invalid_request_from, job_id_for
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.llm.answer_follower import AnswerStream, LlmText
from switchyard.services.llm.budget_account import first_day
from switchyard.services.llm.job_answers import raw_answers
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_queue import (
    LLMQueue,
    LlmResult,
    LlmStatus,
    QueuedRequests,
    RequestOptions,
    result_of,
)
from switchyard.services.llm.records.llm_spend import SpentBy

router = Routes(prefix="/llm/requests", tags=["llm"])
spending_router = Routes(prefix="/llm/spend", tags=["llm"])

_INVALID_REQUEST_ERRORS = (InvalidJob, InvalidPayload, UnknownJobType)
DEFAULT_PRIORITY = 5
MAX_STREAM_DURATION = 3600.0
"""Longest duration, in seconds, of the stream of a request that does not expire."""
STREAM_EXAMPLE = (
    'event: accepted\ndata: {"job_id": "0b0f6c1e"}\n\n'
    'event: text\ndata: {"text": "The tide", "offset": 0}\n\n'
    'event: end\ndata: {"job_id": "0b0f6c1e", "status": "completed"}\n\n'
)
WAITING_RESPONSE: dict[int | str, dict[str, Any]] = {
    202: {"model": models.AnswerOfModel, "description": "It has not ended yet."}
}
_HEADERS = {name: ACCEPTED_HEADERS[name] for name in ("X-Lane-Pressure", "Idempotency-Replayed")}


@router.post(
    "",
    dependencies=[needs(Scope.PUBLISH)],
    response_model=models.AnswerOfModel,
    responses={
        200: {
            "description": "It has ended; or a stream of events.",
            "headers": _HEADERS,
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": STREAM_EXAMPLE}},
        },
        202: {
            **WAITING_RESPONSE[202],
            "headers": {**_HEADERS, "Location": ACCEPTED_HEADERS["Location"]},
        },
        **responses(
            "idempotency-conflict", "lane-full", "broker-away", "no-broker", "too-many-streams"
        ),
    },
)
async def ask(
    body: models.QuestionToModel,
    state: Shared,
    request: Request,
    response: Response,
    stream: Annotated[
        bool, Query(description="Answer as an event stream, like `Accept: text/event-stream`.")
    ] = False,
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=models.MAX_WAIT,
            description="Seconds to wait for the answer; the same as in the body.",
        ),
    ] = 0,
    accept: Annotated[str | None, Header(max_length=500)] = None,
    idempotency_key: IdempotencyKey = None,
) -> models.AnswerOfModel | EventStream:
    """Send a request to a language model. With `wait`, the response has the model's answer. With an
    `Idempotency-Key`, a repeated request does not ask the model again.

    As a stream: `accepted` with its `job_id`; `text` for each piece of the answer, with its
    `offset` in the answer (0 if it starts again); `end` with the complete answer.
    """
    source = source_of(request, body.source)
    idempotency_key = own_key(request, idempotency_key)
    body = body.model_copy(update={"wait": max(body.wait, wait)})
    if stream or MEDIA_TYPE in (accept or ""):
        return await _open_stream(body, state, StreamSlot(request), source, idempotency_key)
    with StreamSlot(request) if body.wait else nullcontext():
        if state.direct is not None:
            return await _ask_directly(body, state.direct, response, source, idempotency_key)
        return await _ask_by_job(body, state, response, source, idempotency_key)


async def _ask_by_job(
    body: models.QuestionToModel,
    state: ApiState,
    response: Response,
    source: str,
    idempotency_key: str | None,
) -> models.AnswerOfModel:
    broker = state.require_broker()
    ids = await state.ledger.system.job_ids()
    expires_at = None
    if body.expires_in is not None:
        expires_at = state.ledger.clock.now() + timedelta(seconds=body.expires_in)
    job_request = JobRequest(
        f"{body.lane}.{body.type}",
        body.payload,
        priority=priority_or_default(body.priority, body.lane),
        source=source,
        expires_at=expires_at,
        idempotency_key=idempotency_key,
        job_id=job_id_for(ids, idempotency_key, body.type, body.payload),
    )
    job = await prepare_job(broker, job_request, by_routing_key=False)
    accepted = await publish_job(broker, job)
    if accepted.duplicate:
        await require_same_request(state, job_request, accepted, expires_in=body.expires_in)
        response.headers["Idempotency-Replayed"] = "true"
    await set_pressure_header(broker, job, accepted, response)
    response.headers["Location"] = f"/llm/requests/{accepted.job_id}"
    record = None
    if body.wait:
        record = await wait_for_end(broker.feed, state.ledger, accepted.job_id, timeout=body.wait)
    if record is None:
        response.status_code = 202
        return models.AnswerOfModel(job_id=accepted.job_id, status=LlmStatus.WAITING)
    return await _view_record(record, state, response)


@router.get(
    "/{job_id}",
    dependencies=[needs(Scope.READ)],
    responses={
        200: {"description": "It has ended."},
        **WAITING_RESPONSE,
        **responses("not-found", "no-broker", "too-many-streams"),
    },
)
async def answer(
    job_id: JobIdInPath,
    state: Shared,
    request: Request,
    response: Response,
    wait: Annotated[
        float, Query(ge=0, le=models.MAX_WAIT, description="Seconds to wait for the answer.")
    ] = 0,
) -> models.AnswerOfModel:
    """Get the answer to an earlier request; with `wait`, wait for it."""
    record = await state.ledger.job_reads.require(job_id)
    with StreamSlot(request) if wait else nullcontext():
        if wait and state.direct is not None:
            return _answer_or_accepted(await state.direct.result(job_id, timeout=wait), response)
        if wait:
            feed = state.require_broker().feed
            record = await wait_for_end(feed, state.ledger, job_id, timeout=wait) or record
    return await _view_record(record, state, response)


async def _open_stream(
    body: models.QuestionToModel,
    state: ApiState,
    slot: StreamSlot,
    source: str,
    idempotency_key: str | None,
) -> EventStream:
    with ExitStack() as cleanup:
        cleanup.enter_context(slot)
        queue = request_queue(state)
        options = _request_options(body, source, idempotency_key)
        with translate_refusals():
            answer_stream = await queue.open_stream(body.type, body.payload, **options)
        cleanup.pop_all()

    def close() -> None:
        answer_stream.close()
        slot.leave()

    frames = _stream_frames(state, queue, answer_stream, body.expires_in or MAX_STREAM_DURATION)
    return EventStream(frames, closing=close)


def _request_options(
    body: models.QuestionToModel, source: str, idempotency_key: str | None
) -> RequestOptions:
    return {
        "lane": body.lane,
        "priority": priority_or_default(body.priority, body.lane),
        "expires_in": body.expires_in,
        "key": idempotency_key,
        "source": source,
    }


def request_queue(state: ApiState) -> LLMQueue:
    """Return the queue of requests: that of this process in direct mode, or else one that uses the
    lanes. Raises Problem if there is neither."""
    if state.direct is not None:
        return state.direct
    broker = state.require_broker()
    return LLMQueue(state.ledger, QueuedRequests(state.ledger, broker.jobs, broker.feed))


def priority_or_default(priority: int | None, lane: str) -> int:
    """Return the priority of a request; the default is in the middle, so that other requests may be
    more or less urgent."""
    if priority is not None:
        return priority
    return min(DEFAULT_PRIORITY, lane_named(lane).default_priority)


@contextmanager
def translate_refusals() -> Iterator[None]:
    """Translate errors of publishing into errors of the API: InvalidRequest, or Problem for a full
    lane."""
    try:
        yield
    except _INVALID_REQUEST_ERRORS as error:
        raise invalid_request_from(error, by_routing_key=False) from error
    except LaneFull as error:
        raise lane_full(error) from error


async def _stream_frames(
    state: ApiState, queue: LLMQueue, answer_stream: AnswerStream, timeout: float
) -> AsyncGenerator[bytes, None]:
    yield frame("accepted", {"job_id": answer_stream.job_id})
    end_wait = queue.wait_for_end(answer_stream.job_id, timeout=timeout)
    # Sent if the ledger is unreachable at the end: the job is not lost, and can be asked for.
    result = LlmResult(answer_stream.job_id, LlmStatus.WAITING)
    try:
        async with aclosing(
            answer_stream.follow(end_wait, heartbeat=state.settings.api_heartbeat)
        ) as events:
            async for each in events:
                if each is None:
                    yield HEARTBEAT
                elif isinstance(each, LlmText):
                    yield frame("text", {"text": each.text, "offset": each.offset})
                else:
                    result = result_of(each, state.ledger.clock.time())
    except LedgerError as error:
        structlog.get_logger("api").warning("stream ended without answer", error=str(error))
    yield frame("end", view_answer(result).model_dump(mode="json"))


async def _ask_directly(
    body: models.QuestionToModel,
    queue: LLMQueue,
    response: Response,
    source: str,
    idempotency_key: str | None,
) -> models.AnswerOfModel:
    with translate_refusals():
        options = _request_options(body, source, idempotency_key)
        job_id = await queue.submit(body.type, body.payload, **options)
    response.headers["Location"] = f"/llm/requests/{job_id}"
    result = LlmResult(job_id, LlmStatus.WAITING)
    if body.wait:
        result = await queue.result(job_id, timeout=body.wait)
    return _answer_or_accepted(result, response)


async def _view_record(
    record: JobRecord, state: ApiState, response: Response
) -> models.AnswerOfModel:
    view = _answer_or_accepted(result_of(record, state.ledger.clock.time()), response)
    return view.model_copy(update={"raw_answers": await raw_answers(state.storage, record)})


def _answer_or_accepted(result: LlmResult, response: Response) -> models.AnswerOfModel:
    if result.status is LlmStatus.WAITING:
        response.status_code = 202
    return view_answer(result)


@spending_router.get(
    "",
    dependencies=[needs(Scope.READ)],
    responses=responses("invalid", "ledger-away"),
)
async def spend(
    state: Shared,
    by: Annotated[SpentBy, Query(description="How calls are grouped.")] = "day",
    since: Annotated[
        date | None, Query(description="First day in UTC, inclusive. Default: 30 days ago.")
    ] = None,
    until: Annotated[
        date | None, Query(description="Last day in UTC, inclusive. Default: today.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> models.SpendReport:
    """Show the cost of language model calls, and what is left of the budgets."""
    ledger, settings = state.ledger, state.settings
    rows = await LlmLedger(ledger).spending.llm_spend(
        by,
        since=since.isoformat() if since else first_day(ledger),
        until=until.isoformat() if until else None,
        limit=limit,
    )
    budgets = await LlmLedger(ledger).spending.llm_budgets(per_day=settings.llm_budget_per_day)
    return view_spending(rows, budgets, by=by, currency=settings.prices.currency)
