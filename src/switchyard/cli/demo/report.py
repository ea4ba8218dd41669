"""The end of `jobctl demo`: what became of every document and job, and whether that is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.broker.wording import pluralize
from switchyard.cli.base.output import add_row, cell, console, echo, styled, table
from switchyard.cli.demo.demo_run import ENDED, DemoDocument, DemoRun
from switchyard.cli.demo.demo_runner import FAILURES, FIXED_PARTS

if TYPE_CHECKING:
    from switchyard.services.engine.records.results import JobRecord

NEEDS_OCR = "needs OCR"


def print_summary(demo: DemoRun) -> None:
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
    for document in demo.documents:
        add_row(rows, cell(document.name), *_cells(document))
    screen.print()
    screen.print(rows)
    for document in demo.documents:
        if error := error_of(document):
            screen.print(f"[red]{cell(document.name)}[/]: {cell(error)}")
    screen.print()
    states = ", ".join(f"{number} {styled(state)}" for state, number in sorted(demo.states.items()))
    accepted = sum(demo.states.values())
    screen.print(f"Jobs: {accepted} accepted, {states}, {_count_lost(demo)} lost")
    if demo.overtaking is not None:
        screen.print(
            f"An urgent (hot) job waited {demo.overtaking.wait_ms:.0f} ms; "
            f"{pluralize(demo.overtaking.overtaken, 'earlier job')} of bulk work waited longer"
        )
    if demo.killed is not None:
        screen.print(
            f"The process {demo.killed.name} was killed in the middle of "
            f"{pluralize(len(demo.killed.job_ids), 'job')}; {demo.rerun} ran again and succeeded"
        )
    if demo.flaky is not None:
        screen.print(
            f"The job demo_flaky failed {_failures(demo.flaky)} times and was tried again after "
            f"1 s and 2 s (in production 5 s and 10 s): {demo.flaky.state}"
        )
    if demo.strict is not None and demo.redriven is not None:
        screen.print(
            f"The job demo_strict failed for good ({cell(demo.strict_error)}) and was sent again "
            "with another payload, as `jobctl dead redrive --set payload.parts="
            f"{FIXED_PARTS}` does: {demo.strict.state}"
        )
    if demo.query:
        screen.print(f"\nSearch for “{cell(demo.query)}”:")
        for hit in demo.hits:
            screen.print(f"  {hit.score:.2f}  [bold]{cell(hit.title)}[/], page {hit.page}")
            echo(f"        {_shorten(hit.snippet, min(screen.width, 120) - 8)}")
    screen.print()


def find_problems(demo: DemoRun) -> list[str]:
    """Return what is not as it should be, in words; empty when all is well."""
    problems = []
    failed = [document.name for document in demo.documents if error_of(document)]
    if failed:
        problems.append(f"{len(failed)} of {len(demo.documents)} documents failed")
    if demo.flaky is None or demo.flaky.state != "succeeded" or _failures(demo.flaky) != FAILURES:
        problems.append("demo_flaky did not succeed at its third attempt")
    if demo.redriven is None or demo.redriven.redriven != 1:
        problems.append("demo_strict was not redriven")
    elif demo.strict is None or demo.strict.state != "succeeded":
        problems.append("demo_strict did not succeed after its redrive")
    if demo.overtaking is None:
        problems.append("no hot job overtook the backfill")
    if demo.killed is None or demo.rerun < len(demo.killed.job_ids):
        problems.append("the jobs of the killed worker did not run again")
    if _count_lost(demo):
        problems.append(f"{_count_lost(demo)} jobs were lost")
    if demo.search_problem:
        problems.append(f"the search failed: {demo.search_problem}")
    elif demo.query and not demo.hits:
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


def _count_lost(demo: DemoRun) -> int:
    """Count the jobs that have not ended."""
    return sum(number for state, number in demo.states.items() if state not in ENDED)


def _shorten(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
