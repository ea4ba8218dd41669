"""The index at JOBS_INDEX_URL, with the embedders of its generations.

An index keeps the embedder that it was made with, whatever the settings say, until it is rebuilt
for another (`index_rebuild`). So a search always asks the embedder whose vectors it compares with,
and new chunks are written to all generations in use.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.postgres import is_postgres
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.pipeline.index.chunk_index import ChunkIndex, IndexMismatch, recovery_hint
from switchyard.services.pipeline.index.compaction import BackgroundCompactor
from switchyard.services.pipeline.index.embedder import (
    Embedder,
    embedder_for,
    embedder_named,
    is_offline,
)
from switchyard.services.pipeline.index.embedder_probe import ProbedEmbedder, VerificationCache
from switchyard.services.pipeline.index.generations import (
    FIRST_TABLE,
    Generation,
    Generations,
    IndexStore,
)

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.llm.budget_account import EmbeddingBudget


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """An index, for as long as its connections are open."""

    settings: Settings
    store: IndexStore
    compactor: BackgroundCompactor
    budget: EmbeddingBudget | None = None
    """The budget that is charged for the vectors that a server makes; None if they are not
    charged."""
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch: by the ledger's clock where there is a ledger, otherwise by
    the host's."""
    verifications: VerificationCache = field(default_factory=VerificationCache)
    """When each generation's vectors were last compared with those that the server makes."""
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    """By address and model, the number of texts that an embedding server takes in one request; only
    for servers that have refused more."""

    @property
    def configured(self) -> Generation:
        """The generation of a new index, with the embedder of the settings. Raises PermanentError
        when that embedder can't be made."""
        return generation_of(embedder_for(self.settings), FIRST_TABLE)

    async def generations(self) -> Generations:
        """Return the newest state of the catalogue. Raises IndexMismatch, IndexUnavailable."""
        return await self.store.generations(self.configured)

    def embedder_of(self, generation: Generation) -> Embedder:
        """Return the embedder of a generation's vectors. An embedder on a server first checks that
        the server still makes the same vectors. Raises IndexMismatch if the settings can't make the
        embedder."""
        embedder = self.unprobed_of(generation)
        if is_offline(embedder.name):
            return embedder
        return ProbedEmbedder(embedder, self.store, generation, self.verifications)

    def unprobed_of(self, generation: Generation) -> Embedder:
        """Return the embedder of a generation's vectors without that check. Raises IndexMismatch
        where these settings can't make it."""
        embedder = embedder_named(
            self.settings, generation.embedder, generation.dimensions, self.budget, self.sizes
        )
        if embedder is None:
            raise IndexMismatch(
                f"the index holds vectors of {generation.embedder!r}, which this process can't "
                f"make: {recovery_hint(generation.embedder, generation.dimensions)}"
            )
        return embedder

    @asynccontextmanager
    async def open_active(self) -> AsyncIterator[tuple[ChunkIndex, Embedder]]:
        """Open the generation that is searched, with the embedder for queries. Raises
        IndexMismatch, IndexUnavailable."""
        active = (await self.generations()).active
        embedder = self.embedder_of(active)
        async with self.store.table(active) as table:
            yield table, embedder

    async def write(
        self, write_to: Callable[[ChunkIndex, Embedder], Awaitable[None]]
    ) -> tuple[Generation, ...]:
        """Call `write_to` for every generation in use, first for the one that is searched. Returns
        those generations.

        The catalogue is read again afterwards: a generation that was begun meanwhile lacks what
        `write_to` has just written, so `write_to` is called for it as well.
        """
        written: list[Generation] = []
        while unwritten := [
            each for each in (await self.generations()).write_targets if each not in written
        ]:
            for generation in unwritten:
                embedder = self.embedder_of(generation)
                async with self.store.table(generation) as table:
                    await write_to(table, embedder)
                    if await table.needs_compaction():
                        self.compactor.begin(generation)
                written.append(generation)
        return tuple(written)

    async def count(self, document_id: str) -> int | None:
        """Count a document's chunks in every generation in use; None where the counts differ."""
        counts = set()
        for generation in (await self.generations()).write_targets:
            async with self.store.table(generation) as table:
                counts.add(await table.count(document_id))
        return counts.pop() if len(counts) == 1 else None


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """A generation, as operators see it."""

    role: Literal["active", "building", "retired"]
    generation: Generation
    chunks: int | None
    """None for a retired generation."""


async def generation_reports(index: OpenIndex) -> list[GenerationReport]:
    """List all generations, the one that is searched first. Raises IndexMismatch,
    IndexUnavailable."""
    state = await index.generations()
    reports = []
    for generation in state.write_targets:
        async with index.store.table(generation) as table:
            role: Literal["active", "building"] = (
                "active" if generation == state.active else "building"
            )
            reports.append(GenerationReport(role, generation, await table.count()))
    return reports + [GenerationReport("retired", each.generation, None) for each in state.retired]


def generation_of(embedder: Embedder, table: str) -> Generation:
    """Return a generation of an embedder's vectors, in a table of that name."""
    return Generation(table, embedder.name, embedder.dimensions)


@asynccontextmanager
async def open_index(
    settings: Settings,
    budget: EmbeddingBudget | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[OpenIndex]:
    """Open the index of the settings; connections are made when they are needed."""
    store = index_store_at(settings.vectors_url)
    compactor = BackgroundCompactor(store)
    try:
        yield OpenIndex(settings, store, compactor, budget, clock)
    finally:
        await compactor.close()
        await store.close()


@asynccontextmanager
async def index_of(ctx: JobContext) -> AsyncIterator[OpenIndex]:
    """Open the index for a job, which is charged for its vectors. Where the jobs of a process share
    an index, that one is used."""
    budget = _embedding_budget(ctx)
    clock = time.time if ctx.ledger is None else ctx.ledger.clock.time
    if ctx.shared is None:
        async with open_index(ctx.settings, budget, clock) as index:
            yield index
    else:
        shared = await ctx.shared.get(OpenIndex, lambda: open_index(ctx.settings))
        yield replace(shared, budget=budget, clock=clock)


def _embedding_budget(ctx: JobContext) -> EmbeddingBudget | None:
    if ctx.settings.embed_base_url is None or ctx.ledger is None:
        return None
    from switchyard.services.llm.budget_account import BudgetAccount, EmbeddingBudget, requester_of

    return EmbeddingBudget(BudgetAccount.from_settings(ctx.settings, ctx.ledger), requester_of(ctx))


def index_store_at(url: str) -> IndexStore:
    """Return the store at an address: PostgreSQL, or LanceDB anywhere else."""
    if is_postgres(url):
        from switchyard.services.pipeline.index.postgres_store import PostgresStore

        return PostgresStore(url)
    from switchyard.services.pipeline.index.lance_store import LanceStore

    return LanceStore(url)
