"""`jobctl jobs cancel`, `rerun` and `move` of many jobs, and the records of these bulk actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
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
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    cell,
    confirm,
    echo,
    inline_json,
    print_json,
    print_rows,
    require_answer,
    say,
    styled,
)
from switchyard.cli.base.shared_options import full_job_id, known_lane
from switchyard.cli.engine.bulk.commands import IdArgument, add_commands, change, change_limits
from switchyard.cli.engine.bulk.rates import (
    NewRateOption,
    RateOption,
    WhyOption,
    new_rate,
    optional_rate,
)
from switchyard.cli.engine.bulk.view import RecordDisplay
from switchyard.cli.engine.dead.changes import (
    AttemptsOption,
    JqOption,
    MergeOption,
    PriorityOption,
    SetOption,
    change_of,
)
from switchyard.cli.engine.dead.purge import DryRunOption
from switchyard.cli.engine.dead.redrive import percentage
from switchyard.cli.engine.jobs import cancel as single
from switchyard.cli.engine.jobs.filter import ChosenJobs, filtered

if TYPE_CHECKING:
    from switchyard.api.models.job_actions import JobActionView
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.actions.spec import ActionPlan, ActionSpec
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkHold, BulkOperation

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids of jobs, from `jobctl jobs list`; the first six characters or more are enough.",
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of jobs, oldest first. Default: no limit."),
]
BackgroundOption = Annotated[
    bool, typer.Option("--background", help="Return at once; a scheduler runs it.")
]


@filtered
def cancel(
    ids: IdsArgument = None,
    limit: LimitOption = None,
    rate: RateOption = None,
    why: WhyOption = None,
    background: BackgroundOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    *,
    chosen: ChosenJobs,
) -> None:
    """Cancel jobs, by id or by filter. Running jobs are stopped by their workers.

    One id is cancelled at once, and the command waits up to 5 s until its worker has stopped it.
    More are a recorded action: it asks first, can be paused, and `jobctl jobs actions undo` reruns
    what it cancelled. Exit code 1: one has already ended, or has not stopped within 5 s; the action
    was paused or halted.

    Examples:

    ```
    jobctl jobs cancel ID
    jobctl jobs cancel --type crawl_site --source nightly --since 1h --dry-run
    ```
    """
    from switchyard.services.engine.actions.spec import ActionSpec
    from switchyard.services.engine.records.job_actions import JobAction

    if ids is not None and len(ids) == 1 and chosen.wanted.is_empty and not (dry_run or background):
        single.cancel(ids[0], as_json=as_json)
        return
    spec = ActionSpec(JobAction.CANCEL, chosen.wanted, limit=limit, remote=False)
    act(spec, chosen, ids, rate, why, background, dry_run, yes, None, as_json)


@filtered
def rerun(
    ids: IdsArgument = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="ROUTING_KEY", help="LANE.JOB_TYPE of the new jobs. Default: as was."),
    ] = None,
    assignments: SetOption = None,
    merge: MergeOption = None,
    jq: JqOption = None,
    priority: PriorityOption = None,
    max_attempts: AttemptsOption = None,
    limit: LimitOption = None,
    rate: RateOption = None,
    halt_on: Annotated[
        str | None,
        typer.Option(
            metavar="N%",
            help="Halt when this percentage of the new jobs that ended has died, for example 20%.",
        ),
    ] = None,
    why: WhyOption = None,
    background: BackgroundOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
    *,
    chosen: ChosenJobs,
) -> None:
    """Publish ended jobs again, as new jobs that are linked with the old ones.

    By id or by filter; with --set, --merge or --jq with another payload. No job is rerun twice by
    one action, whatever is killed. For more than one job it asks for confirmation. Ctrl-C pauses it
    and prints how to continue. Exit code 1: an id is unknown or has not ended, or the action was
    halted or paused. A dead letter stays where it is: `jobctl dead redrive` sends it back.

    Examples:

    ```
    jobctl jobs rerun ID --set payload.max_words=80
    jobctl jobs rerun --source nightly --since 1h --slower-than 5s
    jobctl jobs rerun --type embed_text --state succeeded --rate 50/s --halt-on 20%
    ```
    """
    from switchyard.services.engine.actions.spec import ActionSpec
    from switchyard.services.engine.records.job_actions import JobAction

    spec = ActionSpec(
        JobAction.RERUN,
        chosen.wanted,
        change_of(to, assignments, merge, jq, priority, max_attempts),
        limit=limit,
        halt_on=None if halt_on is None else percentage(halt_on),
        remote=False,
    )
    act(spec, chosen, ids, rate, why, background, dry_run, yes, include, as_json)


@filtered
def move(
    ids: IdsArgument = None,
    to_lane: Annotated[
        str | None,
        typer.Option(metavar="LANE", help="New lane: hot, vlm_ocr, maintenance or backfill."),
    ] = None,
    priority: PriorityOption = None,
    limit: LimitOption = None,
    rate: RateOption = None,
    why: WhyOption = None,
    background: BackgroundOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
    *,
    chosen: ChosenJobs,
) -> None:
    """Give jobs that have not begun another lane or priority, by id or by filter.

    They are published there at once. Their old copies are skipped when a worker gets them; until
    then they count for the old queue's length. A job that runs or waits for a retry stays where it
    is. For more than one job it asks for confirmation. `jobctl jobs actions undo` moves them back.
    Exit code 1: an id is unknown or has begun, or the action was paused.

    Examples:

    ```
    jobctl jobs move --type embed_text --lane hot --to-lane backfill
    jobctl jobs move ID --priority 9
    ```
    """
    from switchyard.services.engine.actions.spec import ActionSpec
    from switchyard.services.engine.records.job_actions import JobAction

    spec = ActionSpec(
        JobAction.MOVE,
        chosen.wanted,
        lane=known_lane(to_lane),
        priority=priority,
        limit=limit,
        remote=False,
    )
    act(spec, chosen, ids, rate, why, background, dry_run, yes, include, as_json)


def act(
    spec: ActionSpec,
    chosen: ChosenJobs,
    ids: Sequence[str] | None,
    rate: str | None,
    why: str | None,
    background: bool,
    dry_run: bool,
    yes: bool,
    include: list[str] | None,
    as_json: bool,
) -> None:
    """Do what the options of a command say: plan it, or ask, record and run it."""
    if ids and not chosen.wanted.is_empty:
        raise WrongUsage("give ids or filters, and not both")
    if not ids and chosen.wanted.is_empty:
        raise WrongUsage("say which jobs: ids, or a filter such as --type or --since")
    per_second = optional_rate(rate)
    asks = not (dry_run or yes or spec.limit == 1 or (ids is not None and len(ids) == 1))
    if asks:
        require_answer(spec.action.value)
    quiet_logs()
    settings = load_settings()
    if not dry_run:
        require_broker(settings)
    registry = load_registry(settings, include)

    async def work() -> None:
        from switchyard.services.engine.actions.spec import plan_action, start_action

        async with open_ledger(settings, registry) as ledger:
            which = chosen.at(ledger.clock.time())
            if ids:
                full = [await full_job_id(ledger, each) for each in ids]
                which = replace(which, ids=tuple(dict.fromkeys(full)))
            meant = replace(spec, which=which)
            plan = await plan_action(ledger, meant)
            missing = max(0, min(len(which.ids), meant.limit or len(which.ids)) - plan.matched)
            if dry_run:
                report_plan(meant, plan, as_json=as_json)
            elif plan.matched == 0:
                say(f"No job that can be {meant.action.participle} fits.")
            else:
                if asks and plan.matched > 1:
                    _confirm(meant, plan)

                async def start(hold: BulkHold | None) -> BulkOperation:
                    from switchyard.cli.base.common import current_user

                    return await start_action(
                        ledger,
                        meant,
                        created_by=current_user(),
                        reason=why,
                        rate=per_second,
                        hold=hold,
                    )

                await begin(
                    settings, registry, ledger, start, background=background, as_json=as_json
                )
            if missing:
                raise CommandFailed(
                    f"{missing} of these ids can't be {meant.action.participle}: no such job, or "
                    "in another state; see `jobctl jobs show ID`"
                )

    run(work())


def _confirm(spec: ActionSpec, plan: ActionPlan) -> None:
    say(_summary(plan))
    for line in _examples(plan):
        say(line)
    verb = spec.action.value.capitalize()
    confirm(f"{verb} {pluralize(plan.matched, 'job')} ({spec.title})?", abort=True)


def _summary(plan: ActionPlan) -> str:
    from switchyard.services.engine.actions.spec import MAX_COUNTED

    more = " or more" if plan.matched == MAX_COUNTED else ""
    return f"{plan.matched:,}{more} {'job' if plan.matched == 1 else 'jobs'}"


def _examples(plan: ActionPlan) -> list[str]:
    lines = [
        f"  {job.id}  {job.routing_key}  {job.state}  {age(job.created_at)}  {job.source}"
        for job in plan.examples
    ]
    return lines + (["  …"] if plan.matched > len(lines) else [])


def report_plan(spec: ActionSpec, plan: ActionPlan, *, as_json: bool) -> None:
    """Say what an action would do."""
    if as_json:
        from switchyard.api.views.job_actions import view_action_plan

        print_json(view_action_plan(plan))
        return
    for line in _examples(plan):
        echo(line)
    echo(f"{_summary(plan)} would be {spec.action.participle}: {spec.title}")


async def begin(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    start: Callable[[BulkHold | None], Awaitable[BulkOperation]],
    *,
    background: bool,
    as_json: bool,
) -> None:
    """Start or resume an action, run it here unless it is for a scheduler, and report."""
    from switchyard.cli.engine.bulk.run_here import run_here
    from switchyard.services.engine.actions.handler import action_handlers
    from switchyard.services.engine.bulk import control as bulk_control

    display = ActionDisplay()
    if background:
        display.report_start(await start(None), as_json=as_json)
        return
    operation = await run_here(
        ledger,
        action_handlers(settings, registry, ledger),
        start,
        counted="done",
        stop=lambda operation_id: bulk_control.pause(ledger, operation_id, "by Ctrl-C"),
    )
    report(operation, as_json=as_json)


def report(operation: BulkOperation, *, as_json: bool) -> None:
    """Say how an action ended. Raises CommandFailed unless it is completed."""
    from switchyard.services.engine.actions.spec import ActionProgress

    display = ActionDisplay()
    progress = ActionProgress.from_operation(operation)
    if as_json:
        print_json(display.public(operation))
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
    """Bulk actions, for the commands that all operations have."""

    noun = "bulk action"
    command = "jobctl jobs actions"
    none = "No bulk actions. Start one: `jobctl jobs cancel`, `rerun` or `move` with a filter."
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

    def public(self, operation: BulkOperation) -> JobActionView:
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
        """Print all that is known of it."""
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

    async def again(ledger: Ledger, hold: BulkHold | None) -> BulkOperation:
        from switchyard.services.engine.bulk import control as bulk_control

        operation = await bulk_control.require_bulk(ledger, operation_id, *VIEW.kinds)
        return await bulk_control.resume(ledger, operation.id, hold=hold)

    _run_recorded(again, include, background=background, as_json=as_json)


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
        from switchyard.services.engine.actions.spec import start_action, undoing
        from switchyard.services.engine.bulk import control as bulk_control

        operation = await bulk_control.require_bulk(ledger, operation_id, *VIEW.kinds)
        return await start_action(
            ledger,
            undoing(operation, remote=False),
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
            await begin(
                settings,
                registry,
                ledger,
                lambda hold: start(ledger, hold),
                background=background,
                as_json=as_json,
            )

    run(work())


@app.command(name="cancel")
def end(operation_id: IdArgument, as_json: JsonOption = False) -> None:
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
    change_limits(VIEW, operation_id, {"rate": new_rate(rate)}, as_json=as_json)
