"""Job types of the LLM worker that ask one question each."""

from __future__ import annotations

from switchyard.services.common.settings.llm import CALL_TIME_SHARE
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.llm.endpoint_requests import (
    EMBEDDINGS,
    RESPONSES,
    TEXT_COMPLETIONS,
    EmbeddingsRequest,
    ResponsesRequest,
    TextCompletionRequest,
)
from switchyard.services.llm.llm_requests import (
    ChatRequest,
    ClassifyRequest,
    EntitiesRequest,
    FactsRequest,
    FieldGroupRequest,
    LlmRequest,
)

LANES = ("hot", "backfill")
LONG_ANSWER_TIMEOUT = 1200.0
"""Seconds that a request with a long answer may take."""
SHORT_ANSWER_TIMEOUT = 300.0


@job("chat_completion", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def chat_completion(payload: ChatRequest, ctx: JobContext) -> Outcome:
    """Answer a chat; with JSON that fits, where the request has a schema."""
    return await _answer(payload, ctx, LONG_ANSWER_TIMEOUT)


@job("extract_facts", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def extract_facts(payload: FactsRequest, ctx: JobContext) -> Outcome:
    """List the facts that a text states, each with the words that say so."""
    return await _answer(payload, ctx, LONG_ANSWER_TIMEOUT)


@job("extract_field_group", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def extract_field_group(payload: FieldGroupRequest, ctx: JobContext) -> Outcome:
    """Find the values of some fields in a text."""
    return await _answer(payload, ctx, LONG_ANSWER_TIMEOUT)


@job("extract_entities", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def extract_entities(payload: EntitiesRequest, ctx: JobContext) -> Outcome:
    """List what a text names, by kind."""
    return await _answer(payload, ctx, LONG_ANSWER_TIMEOUT)


@job("classify", worker="llm", lanes=LANES, timeout=SHORT_ANSWER_TIMEOUT)
async def classify(payload: ClassifyRequest, ctx: JobContext) -> Outcome:
    """Choose the label that fits a text best."""
    return await _answer(payload, ctx, SHORT_ANSWER_TIMEOUT)


@job("create_embeddings", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def create_embeddings(payload: EmbeddingsRequest, ctx: JobContext) -> Outcome:
    """Compute the vectors of texts, as a server's `/embeddings` does."""
    from switchyard.services.llm.job_answers import answer_endpoint_request

    timeout = CALL_TIME_SHARE * LONG_ANSWER_TIMEOUT
    return Done(await answer_endpoint_request(payload, EMBEDDINGS, ctx, timeout=timeout))


@job("complete_text", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def complete_text(payload: TextCompletionRequest, ctx: JobContext) -> Outcome:
    """Continue texts, as a server's `/completions` does."""
    from switchyard.services.llm.job_answers import answer_endpoint_request

    timeout = CALL_TIME_SHARE * LONG_ANSWER_TIMEOUT
    return Done(await answer_endpoint_request(payload, TEXT_COMPLETIONS, ctx, timeout=timeout))


@job("create_response", worker="llm", lanes=LANES, timeout=LONG_ANSWER_TIMEOUT)
async def create_response(payload: ResponsesRequest, ctx: JobContext) -> Outcome:
    """Answer by OpenAI's Responses API, as a server's `/responses` does."""
    from switchyard.services.llm.job_answers import answer_endpoint_request

    timeout = CALL_TIME_SHARE * LONG_ANSWER_TIMEOUT
    return Done(await answer_endpoint_request(payload, RESPONSES, ctx, timeout=timeout))


async def _answer(payload: LlmRequest, ctx: JobContext, seconds: float) -> Outcome:
    # Imported here: it loads database and storage, which are not needed to declare job types.
    from switchyard.services.llm.job_answers import answer_request

    return Done(await answer_request(payload, ctx, timeout=CALL_TIME_SHARE * seconds, batch=True))
