"""`jobctl jobs actions`: the records of bulk actions, and running one in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    cell,
    echo,
    inline_json,
    print_json,
    print_rows,
    say,
    styled,
)
from switchyard.cli.engine.bulk.commands import IdArgument, add_commands, change, change_limits
from switchyard.cli.engine.bulk.rates import NewRateOption, WhyOption, parse_new_rate
from switchyard.cli.engine.bulk.view import RecordDisplay

if TYPE_CHECKING:
    from switchyard.api.models.job_actions import JobActionView
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkHold, BulkOperation

BackgroundOption = Annotated[
    bool, typer.Option("--background", help="Return at once; a scheduler runs it.")
]


async def run_and_report(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    start: Callable[[BulkHold | None], Awaitable[BulkOperation]],
    *,
    background: bool,
    as_json: bool,
) -> None:
    """Start or resume an action, run it in this process unless a scheduler is to run it, and
    report."""
    from switchyard.cli.engine.bulk.foreground import run_in_foreground
    from switchyard.services.engine.actions.handler import action_handlers
    from switchyard.services.engine.bulk import control as bulk_control
    from switchyard.services.engine.bulk.shown import shown_operation

    display = ActionDisplay()
    if background:
        operation = shown_operation(registry, await start(None))
        display.report_start(operation, as_json=as_json)
        return
    operation = await run_in_foreground(
        ledger,
        action_handlers(settings, registry, ledger),
        start,
        counted="done",
        stop=lambda operation_id: bulk_control.pause(ledger, operation_id, "by Ctrl-C"),
    )
    report(shown_operation(registry, operation), as_json=as_json)


def report(operation: BulkOperation, *, as_json: bool) -> None:
    """Print how an action ended. Raises CommandFailed unless it is completed."""
    from switchyard.services.engine.actions.spec import ActionProgress

    display = ActionDisplay()
    progress = ActionProgress.from_operation(operation)
    if as_json:
        print_json(display.to_model(operation))
    else:
        for note in progress.notes:
            say(note)
        parts = [f"{progress.done:,} {display.participle(operation)}"]
        if progress.stopping:
            parts.append(f"of these, {progress.stopping:,} ran: their workers stop them")
        if progress.skipped:
            parts.append(f"{progress.skipped:,} left as they are")
        echo("; ".join(parts))
        say(f"The record: `{display.command} show {operation.id}`")
    display.require_success(operation)


class ActionDisplay(RecordDisplay):
    """Display of bulk actions, for the commands that all kinds of operations share."""

    noun = "bulk action"
    command = "jobctl jobs actions"
    empty_text = (
        "No bulk actions. Start one: `jobctl jobs cancel`, `rerun` or `move` with a filter."
    )
    columns = ("ID", "STATE", "DONE", "SKIPPED", "BY", "AGE", "WHAT", "WHY")
    right = ("DONE", "SKIPPED")
    counted = "done"
    other_counts = ("skipped", "succeeded", "failed", "unfinished")

    @property
    def kinds(self) -> tuple[str, ...]:
        from switchyard.services.engine.actions.spec import KINDS

        return KINDS

    async def read(self, ledger: Ledger, operation: BulkOperation) -> BulkOperation:
        from switchyard.services.engine.actions.spec import settled

        return await settled(ledger, operation)

    def to_model(self, operation: BulkOperation) -> JobActionView:
        """Return an action as `--json` prints it."""
        from switchyard.api.views.job_actions import view_action

        return view_action(operation)

    def participle(self, operation: BulkOperation) -> str:
        from switchyard.services.engine.records.job_actions import JobAction

        return JobAction(operation.kind).participle

    def row(self, operation: BulkOperation) -> Sequence[str]:
        return (
            operation.id,
            styled(operation.state),
            f"{operation.counts.get('done', 0):,}",
            f"{operation.counts.get('skipped', 0):,}",
            cell(operation.created_by),
            age(operation.created_at),
            cell(f"{operation.title}{f' ({operation.note})' if operation.note else ''}"),
            cell(operation.reason or ""),
        )

    def report(self, operation: BulkOperation) -> None:
        """Print everything that is known of an action."""
        from switchyard.services.engine.actions.spec import ActionProgress

        progress = ActionProgress.from_operation(operation)
        total = f" of {progress.total:,}" if progress.total is not None else ""
        numbers = {
            "workers stop": progress.stopping,
            "skipped": progress.skipped,
            "succeeded": progress.succeeded,
            "dead": progress.failed,
            "not at their end": progress.unfinished,
        }
        print_rows(
            [
                ("id", operation.id),
                ("what", f"{operation.kind}: {operation.title}"),
                *self.facts(operation),
                (self.participle(operation), f"{progress.done:,}{total}"),
                *((name, f"{number:,}") for name, number in numbers.items() if number),
                ("spec", inline_json(dict(operation.spec))),
            ]
        )
        for note in progress.notes:
            say(note)
        if operation.kind == "rerun":
            say(f"Its new jobs: `jobctl jobs list --operation {operation.id}`")
        say(f"Its jobs: `jobctl jobs list --acted-by {operation.id}`")


app = typer.Typer(
    no_args_is_help=True,
    help="Records of bulk actions: list, show, watch, pause, resume, cancel, set, undo.",
)
VIEW = ActionDisplay()
add_commands(app, VIEW)


@app.command()
def resume(
    operation_id: IdArgument,
    background: BackgroundOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a bulk action that was paused or halted, or whose process died.

    Runs in the foreground; Ctrl-C pauses it. After a halt only later failures count.
    """

    async def resume_action(ledger: Ledger, hold: BulkHold | None) -> BulkOperation:
        from switchyard.services.engine.bulk import control as bulk_control

        operation = await bulk_control.require_bulk(ledger, operation_id, *VIEW.kinds)
        return await bulk_control.resume(ledger, operation.id, hold=hold)

    _run_recorded(resume_action, include, background=background, as_json=as_json)


@app.command()
def undo(
    operation_id: IdArgument,
    why: WhyOption = None,
    background: BackgroundOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a bulk action by another one, as far as its jobs have not gone on.

    Jobs that it cancelled are rerun as new jobs, new jobs of a rerun that have not ended are
    cancelled, and moved jobs that have not begun go back to their old lane and priority.
    """

    async def start(ledger: Ledger, hold: BulkHold | None) -> BulkOperation:
        from switchyard.cli.base.common import current_user
        from switchyard.services.engine.actions.spec import start_action, undo_spec
        from switchyard.services.engine.bulk import control as bulk_control

        operation = await bulk_control.require_bulk(ledger, operation_id, *VIEW.kinds)
        return await start_action(
            ledger,
            undo_spec(operation, remote=False),
            created_by=current_user(),
            reason=why or f"undoes {operation.id}",
            hold=hold,
        )

    _run_recorded(start, include, background=background, as_json=as_json)


def _run_recorded(
    start: Callable[[Ledger, BulkHold | None], Awaitable[BulkOperation]],
    include: list[str] | None,
    *,
    background: bool,
    as_json: bool,
) -> None:
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> None:
        async with open_ledger(settings, registry) as ledger:
            await run_and_report(
                settings,
                registry,
                ledger,
                lambda hold: start(ledger, hold),
                background=background,
                as_json=as_json,
            )

    run(work())


@app.command(name="cancel")
def cancel_action(operation_id: IdArgument, as_json: JsonOption = False) -> None:
    """End a bulk action permanently; what it has done stays."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.engine.bulk import control as bulk_control

        operation = await bulk_control.require_bulk(ledger, operation_id, *VIEW.kinds)
        return await bulk_control.cancel(ledger, operation.id)

    change(VIEW, work, "is cancelled", as_json=as_json)


@app.command(name="set")
def set_rate(
    operation_id: IdArgument, rate: NewRateOption = None, as_json: JsonOption = False
) -> None:
    """Change the rate of a bulk action, also while it runs."""
    if rate is None:
        raise WrongUsage("name --rate")
    change_limits(VIEW, operation_id, {"rate": parse_new_rate(rate)}, as_json=as_json)
