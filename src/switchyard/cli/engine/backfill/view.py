"""Show a backfill on the terminal: live progress, and the report at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.durations import age, duration_text
from switchyard.cli.base.output import (
    cell,
    console,
    print_rows,
    styled,
    table,
)
from switchyard.cli.engine.bulk.view import BulkDisplay

if TYPE_CHECKING:
    from rich.console import RenderableType

    from switchyard.api.models.backfills import BackfillView
    from switchyard.services.engine.backfill.progress import BackfillProgress
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation

STATE_ORDER = (
    "paused",
    "pending",
    "queued",
    "running",
    "retrying",
    "succeeded",
    "dead",
    "cancelled",
)
BAR_WIDTH = 30


class BackfillDisplay(BulkDisplay["BackfillProgress"]):
    """Display of backfills, for the commands that all kinds of operations share."""

    noun = "backfill"
    command = "jobctl backfill"
    empty_text = "No backfills. Start one: `jobctl backfill start --help`"
    columns = ("ID", "STATE", "PUBLISHED", "DONE", "DEAD", "AGE", "WHAT")
    right = ("PUBLISHED", "DONE", "DEAD")

    @property
    def kinds(self) -> tuple[str, ...]:
        from switchyard.services.engine.backfill.spec import KIND

        return (KIND,)

    async def read(self, ledger: Ledger, operation: BulkOperation) -> BackfillProgress:
        from switchyard.services.engine.backfill.progress import progress_of

        return await progress_of(ledger, operation)

    def to_model(self, progress: BackfillProgress) -> BackfillView:
        """Return a backfill as `--json` prints it."""
        from switchyard.api.views.backfills import view_backfill

        return view_backfill(progress)

    def row(self, progress: BackfillProgress) -> Sequence[str]:
        total = "" if progress.total is None else f"/{progress.total - progress.repeated:,}"
        return (
            progress.operation.id,
            styled(progress.operation.state),
            f"{progress.published:,}{total}",
            f"{progress.done:,}",
            f"{progress.dead:,}",
            age(progress.operation.created_at),
            cell(progress.operation.title),
        )

    def report(self, progress: BackfillProgress) -> None:
        """Print everything that is known of a backfill; for one that is over, its report."""
        operation = progress.operation
        seconds = progress.seconds
        limits = [
            f"{operation.rate:g} jobs a second" if operation.rate else "",
            f"{operation.max_open:,} open jobs" if operation.max_open else "",
            f"a budget of {operation.budget:g}" if operation.budget else "",
            f"weight {weight:g}" if (weight := operation.spec.get("weight", 1)) != 1 else "",
        ]
        print_rows(
            [
                ("id", operation.id),
                ("what", operation.title),
                ("state", operation.state + (f": {progress.note}" if progress.note else "")),
                ("started by", operation.created_by),
                ("reason", operation.reason or ""),
                ("limits", ", ".join(filter(None, limits))),
                ("items", "" if progress.total is None else f"{progress.total:,}"),
                ("published", f"{progress.published:,}"),
                ("skipped", f"{progress.skipped:,}" if progress.skipped else ""),
                ("repeated", f"{progress.repeated:,}" if progress.repeated else ""),
                ("jobs", _format_counts(progress.jobs)),
                ("followed by", _format_counts(progress.followers)),
                ("then", f"job {progress.then_id}" if progress.then_id else ""),
                ("time", "" if seconds is None else duration_text(round(seconds))),
                ("speed", _format_speed(progress)),
            ]
        )
        for note in progress.notes[:10]:
            console().print(f"[yellow]skipped[/] {cell(note)}")
        if len(progress.notes) > 10:
            console().print(f"… and {progress.skipped - 10:,} more: `--json` has the first 50")
        if not progress.deaths:
            return
        rows = table("DEAD", "JOB TYPE", "CAUSE", "SAMPLE", flexible=("CAUSE", "SAMPLE"))
        for death in progress.deaths:
            cause = f"{death.error_type or death.reason}: {death.sample_message or death.reason}"
            rows.add_row(f"{death.count:,}", death.job_type, cell(cause), death.sample_id)
        console().print(rows)
        console().print(f"Send them back with `{redrive_command(progress)}`")

    def one_line(self, progress: BackfillProgress) -> str:
        """Describe how far it is in one line, for a log file."""
        parts = [f"{styled(progress.operation.state)} published {progress.published:,}"]
        if progress.total is not None:
            parts[0] += f" of {progress.total:,}"
        parts += [f"{number:,} {state}" for state, number in _count_jobs(progress)]
        parts += [text for text in (_format_speed(progress), cell(progress.note)) if text]
        return " · ".join(parts)

    def picture(self, progress: BackfillProgress) -> RenderableType:
        """Draw a bar, the jobs by state, speed and time to go, for a live view."""
        from rich.console import Group
        from rich.text import Text

        operation = progress.operation
        lines = [f"[bold]{operation.id}[/]  {cell(operation.title)}"]
        total = progress.total if not progress.exhausted else progress.published + progress.skipped
        state = styled(operation.state)
        if total:
            done, sent = progress.finished + progress.skipped, progress.read
            done_width, sent_width = (
                min(BAR_WIDTH, round(BAR_WIDTH * part / total)) for part in (done, sent)
            )
            sent_only = max(0, sent_width - done_width)
            bar = f"[green]{'━' * done_width}[/][cyan]{'━' * sent_only}[/]"
            rest = f"[dim]{'━' * (BAR_WIDTH - max(done_width, sent_width))}[/]"
            lines.append(f"{state}  {bar}{rest}  {done:,}/{total:,} ({done / total:.0%})")
        else:
            lines.append(f"{state}  {progress.published:,} published")
        numbers = "  ".join(f"{number:,} {styled(name)}" for name, number in _count_jobs(progress))
        lines.append(f"published {progress.published:,}  skipped {progress.skipped:,}  {numbers}")
        if progress.followers:
            parts = "  ".join(
                f"{number:,} {styled(name)}"
                for name in STATE_ORDER
                if (number := progress.followers.get(_state(name), 0))
            )
            lines.append(f"followed by  {parts}")
        lines += [text for text in (_format_speed(progress), cell(progress.note)) if text]
        return Group(*(Text.from_markup(line) for line in lines))

    def is_over(self, progress: BackfillProgress) -> bool:
        return progress.is_over

    def succeeded(self, progress: BackfillProgress) -> bool:
        return progress.succeeded


def redrive_command(progress: BackfillProgress) -> str:
    """Return the command that redrives the dead jobs of a backfill."""
    return f"jobctl dead redrive --operation {progress.operation.id}"


def _format_counts(jobs: Any) -> str:
    parts = [f"{jobs[_state(name)]:,} {name}" for name in STATE_ORDER if jobs.get(_state(name))]
    return ", ".join(parts)


def _count_jobs(progress: BackfillProgress) -> list[tuple[str, int]]:
    return [
        (name, number) for name in STATE_ORDER if (number := progress.jobs.get(_state(name), 0))
    ]


def _state(name: str) -> Any:
    from switchyard.services.engine.records.states import State

    return State(name)


def _format_speed(progress: BackfillProgress) -> str:
    parts = []
    if progress.rate is not None:
        parts.append(f"{progress.rate:,.1f} done a second")
    if progress.eta is not None:
        soonest, latest = (duration_text(round(seconds)) for seconds in progress.eta)
        parts.append(f"{soonest} to go" if soonest == latest else f"{soonest} to {latest} to go")
    return ", ".join(parts)
