"""Job types of the reindex worker: rebuild, compact and clean up the index and the file storage."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Literal

from pydantic import Field

from switchyard.broker import patterns
from switchyard.services.common.durations import DAY
from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_cleanup import Expiry, clean
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.index.embedder import embedder_for
from switchyard.services.pipeline.index.index_rebuild import (
    begin_rebuild,
    compact_index,
    continue_rebuild,
)
from switchyard.services.pipeline.index.open_index import index_of
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.workers.embed import embed_document
from switchyard.services.pipeline.workers.stages import DocumentJob, ends_when_superseded

TIME_BUDGET = 120.0
"""Seconds after which a job that builds an index leaves the other documents to the next job."""
REBUILD_TIMEOUT = TIME_BUDGET + 480.0
COMPACT_TIMEOUT = 1500.0
LEASE_RETENTION = DAY
"""Seconds after its end for which a lease is kept."""


class RebuildIndex(StrictModel):
    """Payload of `rebuild_index`; without any field, for the embedder of the settings."""

    offline: Literal["wordllama", "hashed", "minilm"] | None = None
    """An embedder that works without a server."""
    model: str | None = Field(default=None, min_length=1, max_length=200, pattern=patterns.NO_NUL)
    """A model of the server at JOBS_EMBED_BASE_URL."""
    dimensions: int | None = Field(default=None, ge=8, le=4096)
    """Length of the vectors."""
    force: bool = False
    """Rebuild also for the embedder that the index has."""

    def settings(self, settings: Settings) -> Settings:
        """Return the settings with the embedder of the payload."""
        changes: dict[str, object] = {}
        if self.offline is not None:
            changes |= {"embed_offline": self.offline, "embed_base_url": None}
        if self.model is not None:
            changes["embed_model"] = self.model
        if self.dimensions is not None:
            changes["embed_dimensions"] = self.dimensions
        return settings.model_copy(update=changes)


class UpkeepJob(StrictModel):
    """Payload of `compact_storage` and `cleanup_expired`; it has no fields."""


@job("reindex_content", worker="reindex", lanes=("backfill", "maintenance"), timeout=600)
@ends_when_superseded
async def reindex_content(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Cut a document's text into chunks again, embed them, and replace the document's chunks in the
    index by them. The document's state stays as it is."""
    output = await embed_document(payload, ctx)
    return Done({"document_id": payload.document_id, **output.result, "reused": output.reused})


@job("rebuild_index", worker="reindex", lanes=("maintenance", "backfill"), timeout=REBUILD_TIMEOUT)
async def rebuild_index(payload: RebuildIndex, ctx: JobContext) -> Outcome:
    """Rebuild the index for an embedder, beside the one that is searched, and swap them. A job
    works for two minutes; the next one goes on, behind the jobs that wait in the lane."""
    deadline = time.monotonic() + TIME_BUDGET
    async with index_of(ctx) as index:
        embedder = embedder_for(payload.settings(ctx.settings))
        state = await begin_rebuild(index, embedder, force=payload.force)
        result = {"embedder": embedder.name, "dimensions": embedder.dimensions}
        if state.building is None:
            return Done({**result, "built": False})
        if await continue_rebuild(
            index, state.building, lambda: time.monotonic() > deadline or ctx.is_cancelled()
        ):
            return Done({**result, "built": True})
    # The next job has no `force`, which would begin another rebuild after the swap.
    next_payload = payload.model_copy(update={"force": False})
    next_job = Job("rebuild_index", next_payload.model_dump(exclude_none=True))
    return Next([next_job], {**result, "built": False})


@job("compact_storage", worker="reindex", lanes=("maintenance",), timeout=COMPACT_TIMEOUT)
async def compact_storage(payload: UpkeepJob, ctx: JobContext) -> Outcome:
    """Merge the pieces that writes have left in the index, drop those that no reader needs, and
    index new rows. Searches and jobs go on meanwhile."""
    async with index_of(ctx) as index:
        removed = await compact_index(index)
        return Done({"removed": [each.table for each in removed]})


@job("cleanup_expired", worker="reindex", lanes=("maintenance",), timeout=COMPACT_TIMEOUT)
async def cleanup_expired(payload: UpkeepJob, ctx: JobContext) -> Outcome:
    """Remove files that are older than the settings say, unless an open job, or a dead letter that
    can be redriven, names them; also leases that ran out long ago, and old crawls."""
    if ctx.ledger is None:
        raise PermanentError(
            "cleanup_expired needs the ledger, which knows what is in use: set JOBS_DATABASE_URL"
        )
    # Imported here, as it needs the ledger's database, which a process that only declares job types
    # does not have.
    from switchyard.services.engine.scheduler.small_steps import SmallSteps

    settings = ctx.settings
    expiry = Expiry(settings.files_kept_hours, settings.documents_kept_hours)
    steps, leases = SmallSteps.yielding_to_hot_jobs(ctx.ledger), ctx.ledger.leases
    deleted_rows = await steps.remove_all(
        lambda limit: leases.drop_old_leases(LEASE_RETENTION, limit=limit)
    )
    removed_files = await clean(Storage(settings.files_url), ctx.ledger.references, expiry)
    if settings.crawls_kept_days is not None:
        crawls, age = PipelineLedger(ctx.ledger).crawls, settings.crawls_kept_days * DAY
        deleted_rows += await steps.remove_all(
            lambda limit: crawls.drop_old_crawls(age, limit=limit)
        )
    return Done(asdict(removed_files) | {name: deleted_rows[name] for name in ("leases", "crawls")})
