"""Job types on references: those of a document, and those that come as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from switchyard.services.citations.tokens import MAX_REFERENCE_CHARS
from switchyard.services.files.storage import references_key
from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.outcomes import Done, Outcome
from switchyard.services.jobs.registry import job
from switchyard.services.workers.outputs import DocumentFiles, encoded
from switchyard.services.workers.stages import (
    EXTRACT,
    PROCESS_REFERENCES,
    DocumentJob,
    ends_when_superseded,
)

MAX_AT_ONCE = 200
"""References of one `parse_references`: its result stands in the job's record."""


class ParseReferences(BaseModel):
    """Payload of `parse_references`."""

    model_config = ConfigDict(extra="forbid")

    references: list[Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE_CHARS)]] = Field(
        min_length=1, max_length=MAX_AT_ONCE
    )


@job("parse_references", worker="link", lanes=("hot", "maintenance"), timeout=120)
async def parse_references(payload: ParseReferences, ctx: JobContext) -> Outcome:
    """Cut references into fields; the result has one entry for each, in their order."""
    texts = payload.references
    return Done({"references": await ctx.compute(_parsed, texts, characters=sum(map(len, texts)))})


@job("process_references", worker="link", lanes=("hot", "maintenance"), timeout=300)
@ends_when_superseded
async def process_references(payload: DocumentJob, ctx: JobContext) -> Outcome:
    """Find a document's references, cut them, and tie the text's markers to them."""
    document_id = payload.document_id
    files = DocumentFiles.of(ctx, document_id)
    text = await files.output_of_async(EXTRACT)

    async def work() -> dict[str, Any]:
        pages = [page["text"] for page in text.result["pages"]]
        found: dict[str, Any] = await ctx.compute(
            _processed, pages, characters=sum(map(len, pages))
        )
        return found

    output = await files.reuse_or_run_async(
        PROCESS_REFERENCES, text.output_hash, work, content=text.content, force=payload.force
    )
    key = references_key(document_id)
    # Written although reused: what is kept of a stage goes after a day, this stays.
    await files.storage.put_async(
        key,
        encoded({"document_id": document_id, "hash": output.output_hash, **output.result}),
    )
    return Done(
        {
            "document_id": document_id,
            "references": len(output.result["references"]),
            "citations": len(output.result["citations"]),
            "result": key,
            "reused": output.reused,
        }
    )


def _parsed(texts: Sequence[str]) -> list[dict[str, Any]]:
    from switchyard.services.citations.parsing import OfflineParser

    return [reference.as_json() for reference in OfflineParser().parse_all(texts)]


def _processed(pages: Sequence[str]) -> dict[str, Any]:
    from switchyard.services.citations.parsing import OfflineParser
    from switchyard.services.citations.sections import citations_in, split

    paper = split(pages)
    parsed = OfflineParser().parse_all(raw.text for raw in paper.references)
    return {
        "references": [
            {"label": raw.label, "page": raw.page, **reference.as_json()}
            for raw, reference in zip(paper.references, parsed, strict=True)
        ],
        "citations": [
            asdict(citation) for citation in citations_in(paper.body, paper.references, parsed)
        ],
    }
