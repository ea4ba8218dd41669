"""The job type that links a document's references to works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchyard.services.citations.kept import kept_references
from switchyard.services.citations.reference import Reference
from switchyard.services.citations.works import LinkStatus, WorkLink
from switchyard.services.files.storage import links_key
from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.outcomes import Done, Outcome, PermanentError, Snooze
from switchyard.services.jobs.registry import job
from switchyard.services.workers.outputs import DocumentFiles, encoded
from switchyard.services.workers.stages import (
    LINK_CITATIONS,
    DocumentJob,
    ends_when_superseded,
    note_beside,
)
from switchyard.services.workers.telling import tell_references

SHIFT = 240.0
"""Seconds after which a job asks no more; it goes on behind those that wait."""
LINK_TIMEOUT = SHIFT + 300.0


class NothingToLink(PermanentError):
    """Nobody has looked for the document's references yet."""


@job("link_citations", worker="link", lanes=("hot", "maintenance"), timeout=LINK_TIMEOUT)
@ends_when_superseded
async def link_citations(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Link a document's references to works. What catalogues have answered is kept for all
    documents, so a repeat, or a job that goes on, asks nothing again."""
    # With database and storage: whoever only declares job types needs neither.
    from switchyard.services.citations.linking.linker import Linker, OutOfTime

    document_id = payload.document_id
    if ctx.ledger is None:
        raise PermanentError("works are linked with a ledger alone: it keeps the pace")
    storage = DocumentFiles.of(ctx, document_id).storage
    found = await kept_references(storage, document_id)
    if found is None:
        raise NothingToLink(
            f"the references of document {document_id} have not been looked for: publish "
            "process_references with its document_id"
        )
    references = [Reference.of(each) for each in found["references"]]
    async with Linker.open(ctx.settings, ctx.ledger, within=SHIFT) as linker:
        try:
            links = await linker.link(references)
        except OutOfTime:
            return Snooze(1.0, "there is more to link")
    made = {
        "document_id": document_id,
        "of": found.get("hash"),
        "links": [link.as_json() for link in links],
    }
    key = links_key(document_id)
    await storage.put_async(key, encoded(made))
    await tell_references(ctx, document_id)
    await note_beside(ctx, document_id, LINK_CITATIONS)
    return Done({"document_id": document_id, **_counted(links), "result": key})


def _counted(links: Sequence[WorkLink]) -> dict[str, Any]:
    return {status.value: sum(link.status is status for link in links) for status in LinkStatus}
