"""Job types of `jobctl demo`: one that takes a moment, two that fail on purpose, one that loads
the index and the embedder while the first stages of documents run, as only their last stages need
both, and one that searches the documents."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, ConfigDict, Field

from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job


class DemoPage(BaseModel):
    """Payload of `demo_page`."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = Field(default=0.2, ge=0, le=60)
    """Seconds that the work takes."""


class DemoFlaky(BaseModel):
    """Payload of `demo_flaky`."""

    model_config = ConfigDict(extra="forbid")

    failures: int = Field(default=2, ge=0, le=100)
    """Attempts that fail before one succeeds."""


class DemoStrict(BaseModel):
    """Payload of `demo_strict`."""

    model_config = ConfigDict(extra="forbid")

    parts: int
    """Number of parts to divide into; 0 can't be done, now or later."""


class DemoLoadIndex(BaseModel):
    """Payload of `demo_load_index`: no fields."""

    model_config = ConfigDict(extra="forbid")


class DemoSearch(BaseModel):
    """Payload of `demo_search`."""

    model_config = ConfigDict(extra="forbid")

    query: str
    limit: int = Field(default=3, ge=1, le=10)
    """Passages at most, each from a different document."""


@job("demo_page", worker="llm", lanes=("hot", "backfill"), timeout=120)
async def demo_page(payload: DemoPage, ctx: JobContext) -> Outcome:
    """Take some time, as a request to a model does."""
    await asyncio.sleep(payload.seconds)
    return Done({"attempt": ctx.attempt})


@job("demo_flaky", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def demo_flaky(payload: DemoFlaky, ctx: JobContext) -> Outcome:
    """Fail the first attempts, as a server does that is restarting."""
    if ctx.attempt <= payload.failures:
        raise RetryableError(f"planned failure {ctx.attempt} of {payload.failures}")
    return Done({"attempt": ctx.attempt})


@job("demo_strict", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def demo_strict(payload: DemoStrict, ctx: JobContext) -> Outcome:
    """Refuse for good what can't be done: only another payload helps."""
    if payload.parts == 0:
        raise PermanentError("nothing can be divided into 0 parts")
    return Done({"part": 1 / payload.parts})


@job("demo_load_index", worker="embed", lanes=("hot",), timeout=120)
async def demo_load_index(payload: DemoLoadIndex, ctx: JobContext) -> Outcome:
    """Open the index and load the embedder."""
    from switchyard.services.pipeline.index.embedder import is_offline
    from switchyard.services.pipeline.index.open_index import index_of

    async with index_of(ctx) as index, index.open_active() as (_, embedder):
        if is_offline(embedder.name):
            await embedder.embed(["ready"])
    return Done()


@job("demo_search", worker="embed", lanes=("hot",), timeout=60)
async def demo_search(payload: DemoSearch, ctx: JobContext) -> Outcome:
    """Search where the index is open: another process would have to load it first."""
    from switchyard.services.pipeline.index.chunk_search import search
    from switchyard.services.pipeline.index.open_index import index_of
    from switchyard.services.pipeline.index.search_modes import SearchMode

    async with index_of(ctx) as index, index.open_active() as (table, embedder):
        hits = await search(
            table,
            embedder,
            payload.query,
            payload.limit,
            mode=SearchMode.HYBRID,
            per_document=1,
        )
    shown = [
        {"score": hit.score, "title": hit.title, "page": hit.page, "snippet": hit.snippet}
        for hit in hits
    ]
    return Done({"hits": shown})
