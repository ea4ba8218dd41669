"""The job type that links references to works: those of a document, or of its payload."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import extraction_key, links_key
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome, Snooze
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.citations.cited_works import LinkStatus, WorkLink
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.stored_references import stored_references
from switchyard.services.pipeline.workers.graph_updates import update_citations
from switchyard.services.pipeline.workers.references.payloads import LinkCitations
from switchyard.services.pipeline.workers.stage_outputs import (
    DocumentFiles,
    store_json,
)
from switchyard.services.pipeline.workers.stages import (
    LINK_CITATIONS,
    ends_when_superseded,
    note_completed_stage,
)

TIME_BUDGET = 240.0
"""Seconds after which a job sends no more requests; it goes on behind those that wait."""
MIN_PAUSE = 60.0
"""Every job, however old, waits for a catalogue's pause of up to this many seconds."""
LINK_TIMEOUT = TIME_BUDGET + 300.0


class NothingToLink(PermanentError):
    """The document's references were not searched for yet."""


@job("link_citations", worker="link", lanes=("hot", "maintenance"), timeout=LINK_TIMEOUT)
@ends_when_superseded
async def link_citations(payload: LinkCitations, ctx: JobContext) -> Outcome:
    """Link a document's references, or those of the payload, to works. The answers of catalogues
    are kept for all jobs, so a repeat, or a job that goes on, asks nothing again."""
    if payload.document_id is None:
        return await _link_alone(payload.references or [], ctx)
    return await _link_document(payload.document_id, ctx)


async def _link_document(document_id: str, ctx: JobContext) -> Outcome:
    storage = DocumentFiles.for_document(ctx, document_id).storage
    stored = await stored_references(storage, document_id)
    if stored is None:
        raise NothingToLink(
            f"the references of document {document_id} have not been looked for: publish "
            "process_references with its document_id"
        )
    # In threads, here and below: a book has thousands of references.
    references = await asyncio.to_thread(
        lambda: [Reference.from_json(each) for each in stored["references"]]
    )
    links_or_snooze = await _link(references, ctx)
    if isinstance(links_or_snooze, Snooze):
        return links_or_snooze
    links, paused_catalogues = links_or_snooze
    stored_links = {
        "document_id": document_id,
        "references_hash": stored.get("hash"),
        "links": await asyncio.to_thread(lambda: [link.as_json() for link in links]),
        **paused_catalogues,
    }
    key = links_key(document_id)
    await store_json(storage, key, stored_links)
    await update_citations(ctx, document_id)
    await note_completed_stage(ctx, document_id, LINK_CITATIONS)
    return Done(
        {"document_id": document_id, **_count_by_status(links), **paused_catalogues, "result": key}
    )


async def _link_alone(texts: Sequence[str], ctx: JobContext) -> Outcome:
    """Link references that are given as text, after cutting them into fields. The result is stored,
    as it may have many candidates."""
    from switchyard.services.pipeline.citations.engines.engine_chain import parse_all

    references = await parse_all(texts, ctx)
    links_or_snooze = await _link(references, ctx)
    if isinstance(links_or_snooze, Snooze):
        return links_or_snooze
    links, paused_catalogues = links_or_snooze
    references_with_links = [
        reference.as_json() | {"link": link.as_json()}
        for reference, link in zip(references, links, strict=True)
    ]
    key = extraction_key(ctx.job_id)
    output = {
        "job_id": ctx.job_id,
        "references": references_with_links,
        "citations": [],
        **paused_catalogues,
    }
    await store_json(Storage(ctx.settings.files_url), key, output)
    return Done(
        {
            "references": len(references_with_links),
            **_count_by_status(links),
            **paused_catalogues,
            "result": key,
        }
    )


async def _link(
    references: Sequence[Reference], ctx: JobContext
) -> tuple[Sequence[WorkLink], dict[str, Any]] | Snooze:
    """Link references. Returns the links, and `paused`: the catalogues that were left out, and
    until when."""
    # Imported here, as it needs database and storage, and a process that only declares job types
    # has neither.
    from switchyard.services.pipeline.citations.linking.linker import (
        MAX_PAUSE,
        Linker,
        OutOfTime,
    )

    if ctx.ledger is None:
        raise PermanentError(
            "linking references needs the ledger, which paces the catalogues: set JOBS_DATABASE_URL"
        )
    age = (ctx.ledger.clock.now() - ctx.message.metadata.created_at).total_seconds()
    # An older job waits for shorter pauses: otherwise one pause after the other would make it
    # expire. The age is negative where the publisher's clock is ahead.
    max_pause = max(MAX_PAUSE - max(age, 0.0), MIN_PAUSE)
    async with Linker.open(
        ctx.settings, ctx.ledger, timeout=TIME_BUDGET, max_pause=max_pause, lane=ctx.lane
    ) as linker:
        try:
            links = await linker.link(references)
        except OutOfTime:
            return Snooze(1.0, "there is more to link")
        paused = {
            name: datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds")
            for name, until in linker.paused.items()
        }
        return links, {"paused": paused} if paused else {}


def _count_by_status(links: Sequence[WorkLink]) -> dict[str, Any]:
    return {status.value: sum(link.status is status for link in links) for status in LinkStatus}
