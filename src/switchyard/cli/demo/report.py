"""The end of `jobctl demo`: what became of every document and job, and whether that is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.broker.wording import pluralize
from switchyard.cli.base.output import add_row, cell, console, echo, styled, table
from switchyard.cli.demo.play import FAILURES, FIXED_PARTS
from switchyard.cli.demo.story import ENDED, DemoDocument, DemoRun

if TYPE_CHECKING:
    from switchyard.services.engine.records.results import JobRecord

NEEDS_OCR = "needs OCR"


def print_summary(story: DemoRun) -> None:
    """Print documents, jobs, what was done to them on purpose, and the search."""
    screen = console()
    rows = table(
        "DOCUMENT",
        "STATE",
        "PAGES",
        "WORDS",
        "SUMMARY",
        "CHUNKS",
        "LINKS",
        "TOOK",
        flexible=("DOCUMENT", "SUMMARY"),
        right=("PAGES", "WORDS", "CHUNKS", "LINKS", "TOOK"),
    )
    for document in story.documents:
        add_row(rows, cell(document.name), *_cells(document))
    screen.print()
    screen.print(rows)
    for document in story.documents:
        if error := error_of(document):
            screen.print(f"[red]{cell(document.name)}[/]: {cell(error)}")
    screen.print()
    states = ", ".join(
        f"{number} {styled(state)}" for state, number in sorted(story.states.items())
    )
    accepted = sum(story.states.values())
    screen.print(f"Jobs: {accepted} accepted, {states}, {_count_lost(story)} lost")
    if story.overtaking is not None:
        screen.print(
            f"An urgent (hot) job waited {story.overtaking.wait_ms:.0f} ms; "
            f"{pluralize(story.overtaking.overtaken, 'earlier job')} of bulk work waited longer"
        )
    if story.killed is not None:
        screen.print(
            f"The process {story.killed.name} was killed in the middle of "
            f"{pluralize(len(story.killed.job_ids), 'job')}; {story.rerun} ran again and succeeded"
        )
    if story.flaky is not None:
        screen.print(
            f"The job demo_flaky failed {_failures(story.flaky)} times and was tried again after "
            f"1 s and 2 s (in production 5 s and 10 s): {story.flaky.state}"
        )
    if story.strict is not None and story.redriven is not None:
        screen.print(
            f"The job demo_strict failed for good ({cell(story.death)}) and was sent again with "
            "another payload, as `jobctl dead redrive --set payload.parts="
            f"{FIXED_PARTS}` does: {story.strict.state}"
        )
    if story.query:
        screen.print(f"\nSearch for “{cell(story.query)}”:")
        for hit in story.hits:
            screen.print(f"  {hit.score:.2f}  [bold]{cell(hit.title)}[/], page {hit.page}")
            echo(f"        {_shorten(hit.snippet, min(screen.width, 120) - 8)}")
    screen.print()


def judge(story: DemoRun) -> list[str]:
    """Return what is not as it should be, in words; empty when all is well."""
    problems = []
    failed = [document.name for document in story.documents if error_of(document)]
    if failed:
        problems.append(f"{len(failed)} of {len(story.documents)} documents failed")
    if (
        story.flaky is None
        or story.flaky.state != "succeeded"
        or _failures(story.flaky) != FAILURES
    ):
        problems.append("demo_flaky did not succeed at its third attempt")
    if story.redriven is None or story.redriven.redriven != 1:
        problems.append("demo_strict was not redriven")
    elif story.strict is None or story.strict.state != "succeeded":
        problems.append("demo_strict did not succeed after its redrive")
    if story.overtaking is None:
        problems.append("no hot job overtook the backfill")
    if story.killed is None or story.rerun < len(story.killed.job_ids):
        problems.append("the jobs of the killed worker did not run again")
    if _count_lost(story):
        problems.append(f"{_count_lost(story)} jobs were lost")
    if story.search_problem:
        problems.append(f"the search failed: {story.search_problem}")
    elif story.query and not story.hits:
        problems.append("the search found nothing")
    return problems


def error_of(document: DemoDocument) -> str:
    """Return why a document failed; empty when it did not."""
    if document.problem:
        return document.problem
    for job in document.jobs:
        if job.state != "succeeded":
            return f"{job.job_type} is {job.state}: {job.error_message or job.reason or ''}"
    return "" if document.jobs else "its job was never seen"


def _cells(document: DemoDocument) -> tuple[str, ...]:
    records = document.records
    if error_of(document):
        return ("[red]failed[/]", "", "", "", "", "", _seconds(document))
    ingested = _result(records.get("ingest_document"))
    if "extract_text" not in records and ingested.get("duplicate"):
        return ("known already", "", "", "", "", "", _seconds(document))
    extracted = _result(records.get("extract_text"))
    state = "[green]done[/]" if "link_content" in records else f"[yellow]{NEEDS_OCR}[/]"
    return (
        state,
        str(extracted.get("page_count", "")),
        f"{extracted.get('word_count', 0):,}",
        str(_result(records.get("summarize_content")).get("method", "")),
        str(_result(records.get("embed_content")).get("chunks", "")),
        str(len(_result(records.get("link_content")).get("links", ()))),
        _seconds(document),
    )


def _result(record: JobRecord | None) -> dict[str, Any]:
    return (record.result if record is not None else None) or {}


def _seconds(document: DemoDocument) -> str:
    ends = [job.finished_at for job in document.jobs if job.finished_at is not None]
    return f"{max(ends) - document.jobs[0].created_at:.1f} s" if ends else ""


def _failures(record: JobRecord) -> int:
    return sum(1 for attempt in record.timeline if attempt.outcome == "retry")


def _count_lost(story: DemoRun) -> int:
    """Count the jobs that have not ended."""
    return sum(number for state, number in story.states.items() if state not in ENDED)


def _shorten(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
