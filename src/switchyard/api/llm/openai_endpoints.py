"""`/v1`: OpenAI's API in front of the lanes, for programs that know no other.

A request becomes a job, such as `chat_completion`; its client waits, and is woken at the job's end.
The model server gets all of the request's parameters, and the client all fields of its answer.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from switchyard.api.http.event_stream import MEDIA_TYPE
from switchyard.api.http.problems import OPENAI_PREFIX, responses
from switchyard.api.http.routing import Routes
from switchyard.api.llm.key_limits import CountedForRateLimit, LimitsOf, check_model_allowed
from switchyard.api.llm.openai_chunks import ChunkWriter, text_chunks
from switchyard.api.llm.openai_requests import (
    OpenAiRun,
    OpenAiRunOptions,
    check_model,
    run_options_of,
    served_models,
    wants_usage,
)
from switchyard.api.llm.response_events import ResponseEventWriter
from switchyard.api.middleware.access import needs
from switchyard.api.models import openai as models
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.llm.openai_form import (
    CHATS_URL,
    EMBEDDINGS_URL,
    RESPONSES_URL,
    TEXT_COMPLETIONS_URL,
)

router = Routes(prefix=OPENAI_PREFIX.rstrip("/"), tags=["openai"])

STREAM_EXAMPLE = (
    'data: {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": '
    '{"role": "assistant", "content": "The tide"}, "finish_reason": null}]}\n\n'
    "data: [DONE]\n\n"
)
RESPONSE_EVENT = (
    "event: response.output_text.delta\n"
    'data: {"type": "response.output_text.delta", "delta": "The tide rises."}\n\n'
)
ANSWER_HEADERS: dict[str, Any] = {
    "X-Job-Id": {"description": "The job that asked the model.", "schema": {"type": "string"}},
    "X-Cache": {
        "description": "`HIT`: a stored answer, which costs nothing; `MISS`: a new one.",
        "schema": {"type": "string", "enum": ["HIT", "MISS"]},
    },
    "X-Job-Cost": {
        "description": "Cost of the answer, where the model has a price in JOBS_LLM_PRICES.",
        "schema": {"type": "string"},
    },
}

_PROBLEMS = (
    "forbidden",
    "unknown-model",
    "model-refused",
    "request-cancelled",
    "idempotency-conflict",
    "rate-limited",
    "budget-spent",
    "lane-full",
    "too-many-streams",
    "model-failed",
    "not-answered",
    "broker-away",
    "no-broker",
)


def _answer_responses(description: str, stream_example: str | None = None) -> dict[int | str, Any]:
    """Describe the responses of an endpoint that asks a model, and streams if there is an
    example."""
    success: dict[str, Any] = {"description": description, "headers": ANSWER_HEADERS}
    if stream_example is not None:
        stream_content = {"schema": {"type": "string"}, "example": stream_example}
        success["content"] = {MEDIA_TYPE: stream_content}
    return {200: success, **responses(*_PROBLEMS)}


RunOptions = Annotated[OpenAiRunOptions, Depends(run_options_of)]


@router.post(
    "/chat/completions",
    dependencies=[needs(Scope.PUBLISH)],
    response_model=dict[str, Any],
    responses=_answer_responses("A chat completion, or a stream of its chunks.", STREAM_EXAMPLE),
)
async def create_chat_completion(
    body: models.ChatCompletionBody,
    state: Shared,
    request: Request,
    run_options: RunOptions,
) -> Any:
    """Answer a chat, as OpenAI's API does. A client that hangs up cancels its request. Errors have
    OpenAI's form, too."""
    chat = {"messages": body.messages}
    run = OpenAiRun(CHATS_URL, body, chat, run_options, state, request)
    if not body.stream:
        return await run.answer()
    return await run.stream(
        lambda job_id: ChunkWriter(job_id, body.model, shows_usage=wants_usage(body))
    )


@router.post(
    "/embeddings",
    dependencies=[needs(Scope.PUBLISH)],
    response_model=dict[str, Any],
    responses=_answer_responses("The vectors."),
)
async def create_embeddings(
    body: models.EmbeddingsBody,
    state: Shared,
    request: Request,
    run_options: RunOptions,
) -> Any:
    """Compute the vectors of texts, as OpenAI's API does."""
    texts = {"input": body.input}
    return await OpenAiRun(EMBEDDINGS_URL, body, texts, run_options, state, request).answer()


@router.post(
    "/completions",
    dependencies=[needs(Scope.PUBLISH)],
    response_model=dict[str, Any],
    responses=_answer_responses("A completion, or a stream of its chunks.", "data: [DONE]\n\n"),
)
async def create_completion(
    body: models.CompletionBody,
    state: Shared,
    request: Request,
    run_options: RunOptions,
) -> Any:
    """Continue a text, as OpenAI's older API does."""
    texts = {"prompt": body.prompt}
    run = OpenAiRun(TEXT_COMPLETIONS_URL, body, texts, run_options, state, request)
    if not body.stream:
        return await run.answer()
    return await run.answer(lambda answer: text_chunks(answer, shows_usage=wants_usage(body)))


@router.post(
    "/responses",
    dependencies=[needs(Scope.PUBLISH)],
    response_model=dict[str, Any],
    responses=_answer_responses("A response, or a stream of its events.", RESPONSE_EVENT),
)
async def create_response(
    body: models.ResponsesBody,
    state: Shared,
    request: Request,
    run_options: RunOptions,
) -> Any:
    """Answer as OpenAI's Responses API does, through a server that has it."""
    items = {"input": body.input}
    run = OpenAiRun(RESPONSES_URL, body, items, run_options, state, request)
    return await run.stream(ResponseEventWriter) if body.stream else await run.answer()


@router.get(
    "/models",
    dependencies=[needs(Scope.PUBLISH, Scope.READ), CountedForRateLimit],
    responses=responses("rate-limited"),
)
async def list_models(state: Shared, limits: LimitsOf) -> models.ServedModels:
    """List the models that requests can name: those of JOBS_LLM_PROVIDERS, their aliases, and that
    of JOBS_EMBED_BASE_URL; of these, those that the key may use."""
    served = served_models(state.settings)
    return models.ServedModels(
        data=[each for each in served if not limits or limits.allows(each.id)]
    )


@router.get(
    "/models/{model:path}",
    dependencies=[needs(Scope.PUBLISH, Scope.READ), CountedForRateLimit],
    responses=responses("unknown-model", "rate-limited"),
)
async def show_model(
    state: Shared,
    limits: LimitsOf,
    model: Annotated[str, Path(max_length=200, pattern=patterns.PLAIN)],
) -> models.ServedModel:
    """Show one of the models."""
    check_model_allowed(limits, model)
    check_model(state.settings, model, embeds=True)
    return next(each for each in served_models(state.settings) if each.id == model)
