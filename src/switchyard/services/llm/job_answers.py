"""Jobs that ask one question each: from the question to an answer that fits its schema.

Answers that do not fit are stored, to show why the job failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any

from switchyard.broker.message import now
from switchyard.services.common.errors import Expired, PermanentError, RetryableError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import raw_answers_key
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.llm.batch_collector import may_batch
from switchyard.services.llm.budget_account import requester_of
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.endpoint_requests import (
    EMBEDDINGS,
    EmbeddingsRequest,
    Endpoint,
    ResponsesRequest,
    TextCompletionRequest,
)
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.llm_requests import LlmQuestion, LlmRequest
from switchyard.services.llm.model_client import ModelClient, model_client_of
from switchyard.services.llm.structured_answers import parse_answer

MAX_QUOTED = 300
"""Characters of an answer that an error shows."""


async def answer_request(
    request: LlmRequest, ctx: JobContext, *, timeout: float, batch: bool = False
) -> dict[str, Any]:
    """Ask a question, and return the job's result: `text`, `value` if there is a schema, `model`,
    `complete` (not cut by `max_tokens`), `usage`, `answer_reused`, `completion` (the body of the
    answer, with `keep_all`) and `repaired` (only the second answer fitted the schema).

    With `batch`, a job that asks nothing else may wait for a Batch API. `timeout` is seconds.
    Raises Expired when the job has expired, LlmUnusable, and what `ModelClient.answer` raises.
    """
    seconds_left = _time_left(ctx, timeout)
    with _raise_if_expiring(ctx):
        async with model_client_of(ctx) as client:
            return await _ask_with_repair(
                client, request, ctx, seconds_left, batch=batch and may_batch(ctx)
            )


async def answer_endpoint_request(
    request: EmbeddingsRequest | TextCompletionRequest | ResponsesRequest,
    endpoint: Endpoint,
    ctx: JobContext,
    *,
    timeout: float,
) -> dict[str, Any]:
    """Ask an endpoint other than that of chats, and return the job's result, with the server's
    answer as `completion`. Raises Expired, and what `ModelClient.answer` raises."""
    seconds_left = _time_left(ctx, timeout)
    with _raise_if_expiring(ctx):
        async with _client_for(ctx, request.model, endpoint) as client:
            answer, reused = await client.answer(
                request.body(),
                urgency=Urgency.from_priority(ctx.lane, ctx.message.priority),
                timeout=seconds_left,
                fresh=request.fresh,
                requester=requester_of(ctx),
                model=request.model,
                keep_all=True,
                endpoint=endpoint,
                record_soon=True,
                output=ctx.output
                if isinstance(request, ResponsesRequest) and request.stream
                else None,
            )
            return _job_result(answer, reused)


class EmbeddingClient(ModelClient):
    """The client of the server of JOBS_EMBED_BASE_URL. It is a class of its own because the jobs
    of a process share one client for each class."""


def _client_for(
    ctx: JobContext, model: str, endpoint: Endpoint
) -> AbstractAsyncContextManager[ModelClient]:
    settings = ctx.settings.for_embeddings
    is_served = any(each.serves(model) for each in ctx.settings.llm_servers)
    if endpoint is EMBEDDINGS and settings is not None and not is_served:
        return model_client_of(ctx, settings, EmbeddingClient)
    return model_client_of(ctx)


@contextmanager
def _raise_if_expiring(ctx: JobContext) -> Iterator[None]:
    """Raise Expired in place of a RetryableError if the job would expire before another try."""
    try:
        yield
    except RetryableError as error:
        expires_at = ctx.message.metadata.expires_at
        # A retry takes the shortest delay at least: the job would come back expired.
        delay = max(error.after or 0.0, ctx.settings.retry_delays[0])
        if expires_at is not None and _now(ctx) + timedelta(seconds=delay) >= expires_at:
            raise Expired(f"no answer in time: {error}") from error
        raise


def _now(ctx: JobContext) -> datetime:
    return now() if ctx.ledger is None else ctx.ledger.clock.now()


def _time_left(ctx: JobContext, timeout: float) -> float:
    expires_at = ctx.message.metadata.expires_at
    if expires_at is None:
        return timeout
    seconds_left = (expires_at - _now(ctx)).total_seconds()
    if seconds_left <= 0:
        raise Expired("the job expired before the model was called")
    return min(timeout, seconds_left)


async def _ask_with_repair(
    client: ModelClient, request: LlmRequest, ctx: JobContext, timeout: float, *, batch: bool
) -> dict[str, Any]:
    question = request.question()
    urgency = Urgency.from_priority(ctx.lane, ctx.message.priority)
    deadline = time.monotonic() + timeout

    async def ask(*messages: dict[str, str]) -> tuple[Completion, bool]:
        left = max(0.1, deadline - time.monotonic())
        chat = question.request_body(*messages)
        return await client.answer(
            chat,
            urgency=urgency,
            timeout=left,
            fresh=request.fresh,
            requester=requester_of(ctx),
            batch=batch and not request.stream,  # a client reads the answer while it is written
            output=ctx.output if request.stream else None,
            model=question.model,
            keep_all=question.keep_all,
            record_soon=True,
        )

    answer, reused = await ask()
    if question.schema is None:
        return _job_result(answer, reused)
    try:
        value = await parse_answer(answer.text, question.schema, ctx.in_process)
        return _job_result(answer, reused) | {"value": value}
    except ValueError as error:
        problem = str(error)
    repair_messages = _repair_messages(answer, problem)
    second_answer, reused = await ask(*repair_messages)
    try:
        value = await parse_answer(second_answer.text, question.schema, ctx.in_process)
    except ValueError as error:
        await _forget_answers(client, question, repair_messages)
        storage = Storage(ctx.settings.files_url)
        await store_raw_answers(storage, ctx.job_id, [answer.text, second_answer.text])
        beginning = second_answer.text[:MAX_QUOTED]
        raise LlmUnusable(
            f"the model's answer can't be used: {error}; it begins {beginning!r}; "
            f"both answers in full: jobctl llm show {ctx.job_id}"
        ) from error
    return _job_result(second_answer, reused) | {"value": value, "repaired": True}


def _job_result(answer: Completion, reused: bool) -> dict[str, Any]:
    result = {
        "text": answer.text,
        "model": answer.model,
        "complete": answer.is_complete,
        "usage": dict(answer.usage),
        "answer_reused": reused,
    }
    return result if answer.body is None else result | {"completion": answer.body}


def _repair_messages(answer: Completion, problem: str) -> list[dict[str, str]]:
    request = f"This can't be used: {problem}. Answer again, with JSON alone that fits the schema."
    return [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": request},
    ]


async def _forget_answers(
    client: ModelClient, question: LlmQuestion, repair_messages: list[dict[str, str]]
) -> None:
    """Delete the stored answers, so that a redrive gets others."""
    await client.forget(question.request_body(), model=question.model)
    await client.forget(question.request_body(*repair_messages), model=question.model)


class LlmUnusable(PermanentError):
    """Neither the model's first answer nor its second fits the schema."""


async def store_raw_answers(storage: Storage, job_id: str, answers: Sequence[str]) -> None:
    """Store the model's answers to a job. Raises StorageError."""
    body = json.dumps({"answers": list(answers)}, ensure_ascii=False).encode()
    await storage.put_async(raw_answers_key(job_id), body)


async def raw_answers(storage: Storage, record: JobRecord) -> list[str] | None:
    """Return the model's answers to a job that is dead because neither answer fits; None for any
    other job, and if they are not stored any more. Raises StorageError."""
    if record.error_type != LlmUnusable.__name__:
        return None
    try:
        stored = json.loads(await storage.get_async(raw_answers_key(record.id)))
    except NotStored:
        return None
    answers: list[str] = stored["answers"]
    return answers
