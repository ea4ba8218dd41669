"""`jobctl prune`: remove ended jobs whose age is over, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import load_registry, load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import duration_text
from switchyard.cli.base.output import JsonOption, add_row, cell, console, print_json, say, table

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.scheduler.retention import RetentionReport

_REASONS_TO_KEEP = {
    "operation": "their backfill has not ended",
    "letter": "their dead letter waits in jobs.dead",
    "followers": "jobs that followed from them are kept",
    "join": "the job that waited for them is kept",
    "redrive": "the redrive that sent them has not ended",
    "key": "their idempotency key is known for 7 days",
}


def prune(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be removed; remove nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove ended jobs, letters, operations and workers whose age is over.

    The active scheduler does the same all the time. Ages are settings, such as
    JOBS_KEEP_SUCCEEDED=30d, or `off`: for ever. Also JOBS_KEEP_CANCELLED, JOBS_KEEP_DEAD,
    JOBS_KEEP_LANES, JOBS_KEEP_TYPES and JOBS_KEEP_OPERATIONS; docs/retention.md has the defaults.
    What is still needed stays. With JOBS_ARCHIVE_JOBS, jobs are archived first. It goes in small
    steps that give way to hot jobs; Ctrl-C stops it, and it can be repeated.
    """
    quiet_logs()
    settings = load_settings()
    report = run(_prune(settings, dry_run=dry_run))
    if as_json:
        print_json(_as_json(report, dry_run=dry_run))
        return
    _show(settings, report, dry_run=dry_run)


async def _prune(settings: Settings, *, dry_run: bool) -> RetentionReport:
    from switchyard.services.engine.archive.archiver import JobArchiver
    from switchyard.services.engine.records.retention import RetentionAges
    from switchyard.services.engine.scheduler.retention import Pruner

    registry = load_registry(settings) if settings.archive_jobs else None
    async with open_ledger(settings, registry) as ledger:
        archiver = None if registry is None else JobArchiver(settings, ledger, registry)
        pruner = Pruner(ledger, RetentionAges.of(settings), archiver=archiver)
        return await pruner.make_pass(dry_run=True) if dry_run else await pruner.prune()


def _as_json(report: RetentionReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "jobs": [
            {"state": state, "job_type": name, "jobs": number}
            for (state, name), number in report.jobs.most_common()
        ],
        "rows": dict(report.rows),
        "kept": {why: number for why, number in report.kept.items() if number},
    }


def _show(settings: Settings, report: RetentionReport, *, dry_run: bool) -> None:
    ages = (
        ("succeeded", settings.keep_succeeded),
        ("cancelled", settings.keep_cancelled),
        ("dead", settings.keep_dead),
        *settings.keep_lanes.items(),
        *settings.keep_types.items(),
    )
    ages_text = ", ".join(
        f"{name} {'for ever' if age is None else duration_text(age)}" for name, age in ages
    )
    say(f"Kept: {ages_text}.")
    if report.jobs:
        rows = table("STATE", "TYPE", "JOBS", flexible=("TYPE",), right=("JOBS",))
        for (state, name), number in report.jobs.most_common():
            add_row(rows, state, cell(name), f"{number:,}")
        console().print(rows)
    others = ", ".join(
        f"{number:,} of {name}" for name, number in report.rows.items() if name != "jobs" and number
    )
    verb = "would be removed" if dry_run else "removed"
    say(
        f"{pluralize(report.rows['jobs'], 'job')} {verb}"
        + (f"; other rows: {others}" if others else "")
        + "."
    )
    for why, number in report.kept.most_common():
        if number:
            say(f"{pluralize(number, 'old job stays', 'old jobs stay')}: {_REASONS_TO_KEEP[why]}.")
