"""`jobctl jobs cancel`, `rerun` and `move`: act on many jobs, by ids or a filter, as a recorded
bulk action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    confirm,
    echo,
    print_json,
    require_answer,
    say,
)
from switchyard.cli.base.shared_options import check_lane, full_job_id, with_options
from switchyard.cli.engine.bulk.rates import RateOption, WhyOption, parse_optional_rate
from switchyard.cli.engine.dead.changes import (
    AttemptsOption,
    JqOption,
    MergeOption,
    PriorityOption,
    SetOption,
    make_change,
)
from switchyard.cli.engine.dead.purge import DryRunOption
from switchyard.cli.engine.dead.redrive import parse_percentage
from switchyard.cli.engine.jobs.action_records import BackgroundOption, run_and_report
from switchyard.cli.engine.jobs.cancel import cancel_one
from switchyard.cli.engine.jobs.filter import ChosenJobs, with_job_filter

if TYPE_CHECKING:
    from switchyard.services.engine.actions.spec import ActionPlan, ActionSpec
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


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options for running an action that `cancel`, `rerun` and `move` share."""

    rate: float | None
    """Jobs per second; None for no limit."""
    why: str | None
    background: bool
    dry_run: bool
    yes: bool
    as_json: bool


def _run_options(
    rate: RateOption = None,
    why: WhyOption = None,
    background: BackgroundOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> RunOptions:
    return RunOptions(parse_optional_rate(rate), why, background, dry_run, yes, as_json)


with_run_options = with_options(_run_options, "options")
"""Give a command these options; it gets them as `options`, RunOptions."""


@with_job_filter
@with_run_options
def cancel(
    ids: IdsArgument = None,
    limit: LimitOption = None,
    *,
    options: RunOptions,
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

    is_single = ids is not None and len(ids) == 1 and chosen.job_filter.is_empty
    if ids and is_single and not (options.dry_run or options.background):
        cancel_one(ids[0], as_json=options.as_json)
        return
    spec = ActionSpec(JobAction.CANCEL, chosen.job_filter, limit=limit, remote=False)
    run_action(spec, chosen, ids, options)


@with_job_filter
@with_run_options
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
    canary: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Publish this many first, and the others only after all of these have "
            "succeeded. If one dies, the rerun halts.",
        ),
    ] = None,
    halt_on: Annotated[
        str | None,
        typer.Option(
            metavar="N%",
            help="Halt when this percentage of the new jobs that ended has died, for example 20%.",
        ),
    ] = None,
    include: IncludeOption = None,
    *,
    options: RunOptions,
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
    jobctl jobs rerun --type embed_text --state succeeded --canary 5 --halt-on 20%
    ```
    """
    from switchyard.services.engine.actions.spec import ActionSpec
    from switchyard.services.engine.records.job_actions import JobAction

    spec = ActionSpec(
        JobAction.RERUN,
        chosen.job_filter,
        make_change(to, assignments, merge, jq, priority, max_attempts),
        limit=limit,
        halt_on=None if halt_on is None else parse_percentage(halt_on),
        canary=canary,
        remote=False,
    )
    run_action(spec, chosen, ids, options, include)


@with_job_filter
@with_run_options
def move(
    ids: IdsArgument = None,
    to_lane: Annotated[
        str | None,
        typer.Option(metavar="LANE", help="New lane: hot, vlm_ocr, maintenance or backfill."),
    ] = None,
    priority: PriorityOption = None,
    limit: LimitOption = None,
    include: IncludeOption = None,
    *,
    options: RunOptions,
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
        chosen.job_filter,
        lane=check_lane(to_lane),
        priority=priority,
        limit=limit,
        remote=False,
    )
    run_action(spec, chosen, ids, options, include)


def run_action(
    spec: ActionSpec,
    chosen: ChosenJobs,
    ids: Sequence[str] | None,
    options: RunOptions,
    include: list[str] | None = None,
) -> None:
    """Plan an action, or ask for confirmation, record and run it, as the options say."""
    if ids and not chosen.job_filter.is_empty:
        raise WrongUsage("give ids or filters, and not both")
    if not ids and chosen.job_filter.is_empty:
        raise WrongUsage("say which jobs: ids, or a filter such as --type or --since")
    needs_confirmation = not (
        options.dry_run or options.yes or spec.limit == 1 or (ids is not None and len(ids) == 1)
    )
    if needs_confirmation:
        require_answer(spec.action.value)
    quiet_logs()
    settings = load_settings()
    if not options.dry_run:
        require_broker(settings)
    registry = load_registry(settings, include)

    async def work() -> None:
        from switchyard.services.engine.actions.spec import plan_action, start_action

        async with open_ledger(settings, registry) as ledger:
            which = chosen.as_of(ledger.clock.time())
            if ids:
                full_ids = [await full_job_id(ledger, each) for each in ids]
                which = replace(which, ids=tuple(dict.fromkeys(full_ids)))
            full_spec = replace(spec, which=which)
            plan = await plan_action(ledger, full_spec)
            missing = max(0, min(len(which.ids), full_spec.limit or len(which.ids)) - plan.matched)
            if options.dry_run:
                report_plan(full_spec, plan, as_json=options.as_json)
            elif plan.matched == 0:
                say(f"No job that can be {full_spec.action.participle} fits.")
            else:
                if needs_confirmation and plan.matched > 1:
                    _confirm(full_spec, plan)

                async def start(hold: BulkHold | None) -> BulkOperation:
                    from switchyard.cli.base.common import current_user

                    return await start_action(
                        ledger,
                        full_spec,
                        created_by=current_user(),
                        reason=options.why,
                        rate=options.rate,
                        hold=hold,
                    )

                await run_and_report(
                    settings,
                    registry,
                    ledger,
                    start,
                    background=options.background,
                    as_json=options.as_json,
                )
            if missing:
                raise CommandFailed(
                    f"{missing} of these ids can't be {full_spec.action.participle}: no such job, "
                    "or in another state; see `jobctl jobs show ID`"
                )

    run(work())


def _confirm(spec: ActionSpec, plan: ActionPlan) -> None:
    say(_describe_matches(plan))
    for line in _example_lines(plan):
        say(line)
    verb = spec.action.value.capitalize()
    confirm(f"{verb} {pluralize(plan.matched, 'job')} ({spec.title})?", abort=True)


def _describe_matches(plan: ActionPlan) -> str:
    from switchyard.services.engine.actions.spec import MAX_COUNTED

    more = " or more" if plan.matched == MAX_COUNTED else ""
    return pluralize(plan.matched, "job") + more


def _example_lines(plan: ActionPlan) -> list[str]:
    lines = [
        f"  {job.id}  {job.routing_key}  {job.state}  {age(job.created_at)}  {job.source}"
        for job in plan.examples
    ]
    return lines + (["  …"] if plan.matched > len(lines) else [])


def report_plan(spec: ActionSpec, plan: ActionPlan, *, as_json: bool) -> None:
    """Print what an action would do."""
    if as_json:
        from switchyard.api.views.job_actions import view_action_plan

        print_json(view_action_plan(plan))
        return
    for line in _example_lines(plan):
        echo(line)
    echo(f"{_describe_matches(plan)} would be {spec.action.participle}: {spec.title}")
