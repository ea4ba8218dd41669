"""Job type `ingest_arxiv`: a paper, or the papers of a query, from arXiv into the pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.engine.jobs.outcomes import Job, Next, Outcome
from switchyard.services.engine.jobs.registry import job
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.arxiv.arxiv_client import (
    MAX_SEARCH_RESULTS,
    PAGE_SIZE,
    ArxivClient,
    payload_of,
)
from switchyard.services.pipeline.sources.arxiv.arxiv_feed import ArxivId, Entry
from switchyard.services.pipeline.sources.source_errors import SourceBusy, SourceNotFound
from switchyard.services.pipeline.workers.ingest.arxiv_documents import ingest_paper
from switchyard.services.pipeline.workers.ingest.source_jobs import snooze_for_turn

DEFAULT_RESULTS = 100
DEFAULT_RESULTS_SINCE = 1000


def _normalise(text: str) -> str:
    return str(ArxivId.parse(text))


def _in_utc(moment: datetime) -> datetime:
    """Return a time in UTC, as arXiv's are; also one that has no time zone."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class IngestArxiv(StrictModel):
    """One paper (`id`), or the papers that a `query` finds."""

    id: Annotated[str, AfterValidator(_normalise)] | None = None
    """Id in any form that ArxivId.parse reads, with a version or without."""
    entry: Annotated[Entry | None, LocalOnly("leave it out, and arXiv is asked")] = None
    """arXiv's entry of the paper, if the publisher has it already: then arXiv is not asked."""
    query: str | None = Field(default=None, min_length=1, max_length=2000)
    """A query in arXiv's syntax: `cat:cs.DB AND ti:index`."""
    start: int = Field(default=0, ge=0, lt=MAX_SEARCH_RESULTS)
    max_results: int | None = Field(default=None, ge=1, le=MAX_SEARCH_RESULTS)
    """Papers to take in at most; 100 where unset, 1,000 with `since`."""
    since: Annotated[datetime, AfterValidator(_in_utc)] | None = None
    """Take in only newer papers, oldest first; without it the newest come first."""
    date: Literal["submittedDate", "lastUpdatedDate"] = "submittedDate"
    """The date that `since` and the order refer to: lastUpdatedDate finds new versions, too."""
    full_text: bool = False
    """Take in the PDF, instead of title and abstract."""
    force: bool = False
    """Run the stages again although the document has this version."""

    @model_validator(mode="after")
    def _check_id_or_query(self) -> IngestArxiv:
        if (self.id is None) == (self.query is None):
            raise ValueError("give either id or query")
        if self.id is not None and self.model_fields_set & _QUERY_FIELDS:
            raise ValueError(f"{', '.join(sorted(_QUERY_FIELDS))} are for a query, not for an id")
        if self.entry is not None and not _describes(self.entry, self.id):
            raise ValueError("entry is of another paper than id")
        if self.start + self.max_papers > MAX_SEARCH_RESULTS:
            raise ValueError(
                f"start and max_results reach beyond {MAX_SEARCH_RESULTS:,}, "
                "where arXiv answers no more: divide the query by dates"
            )
        return self

    @property
    def max_papers(self) -> int:
        """Most papers to ingest."""
        default = DEFAULT_RESULTS if self.since is None else DEFAULT_RESULTS_SINCE
        return self.max_results or min(default, MAX_SEARCH_RESULTS - self.start)


_QUERY_FIELDS = frozenset({"start", "max_results", "since", "date"})


def _describes(entry: Entry, paper_id: str | None) -> bool:
    if paper_id is None:
        return False
    arxiv_id = ArxivId.parse(paper_id)
    return arxiv_id.base == entry.id and arxiv_id.version in (None, entry.version)


@job("ingest_arxiv", worker="ingest", lanes=("hot", "backfill"), timeout=300)
async def ingest_arxiv(payload: IngestArxiv, ctx: JobContext) -> Outcome:
    """Take a paper in; or, for a query, publish a job for each paper of a page of its results, and
    one for the next page. When arXiv must not be asked now, the job snoozes, which uses up no
    attempt."""
    try:
        if payload.query is not None:
            return await _ingest_page(payload, payload.query, ctx)
        entry = payload.entry or await _fetch_entry(ArxivId.parse(payload.id or ""), ctx)
        return await ingest_paper(entry, ctx, full_text=payload.full_text, force=payload.force)
    except SourceBusy as busy:
        return snooze_for_turn(busy, ctx)


async def _fetch_entry(arxiv_id: ArxivId, ctx: JobContext) -> Entry:
    async with ArxivClient.connect(ctx.settings, ctx.ledger, lane=ctx.lane) as client:
        entries = await client.entries([arxiv_id])
    entry = next((each for each in entries if _describes(each, str(arxiv_id))), None)
    if entry is None:
        raise SourceNotFound(f"arXiv has no paper {arxiv_id}")
    return entry


async def _ingest_page(payload: IngestArxiv, query: str, ctx: JobContext) -> Outcome:
    size = min(PAGE_SIZE, payload.max_papers)
    async with ArxivClient.connect(ctx.settings, ctx.ledger, lane=ctx.lane) as client:
        feed = await client.search(
            query,
            payload.start,
            size,
            since=payload.since,
            date=payload.date,
            sort_by=payload.date,
            order="descending" if payload.since is None else "ascending",
        )
    options = {name: True for name in ("full_text", "force") if getattr(payload, name)}
    next_start = payload.start + feed.count
    papers_left = min(payload.max_papers - feed.count, feed.total - next_start)
    jobs = [
        Job("ingest_arxiv", payload_of(entry, **options), own_pipeline=True)
        for entry in feed.entries
    ]
    if papers_left > 0 and feed.count > 0:
        next_payload = payload.model_dump(mode="json", exclude_unset=True)
        next_payload |= {"start": next_start, "max_results": papers_left}
        # The first of the jobs, so that its id is the same however many papers a repeat finds.
        jobs.insert(0, Job("ingest_arxiv", next_payload))
    result: dict[str, Any] = {
        "papers": len(feed.entries),
        "start": payload.start,
        "total": feed.total,
        "next_start": next_start if papers_left > 0 else None,
    }
    return Next(jobs, result)
