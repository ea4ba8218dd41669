"""`jobctl dead redrive`: send dead letters back, as a recorded operation that can be watched and
paused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

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
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import JsonOption, YesOption, echo, print_json, require_answer, say
from switchyard.cli.engine.bulk.rates import RateOption, WhyOption, parse_optional_rate
from switchyard.cli.engine.dead.changes import (
    AttemptsOption,
    JqOption,
    MergeOption,
    PriorityOption,
    SetOption,
    ToOption,
    make_change,
)
from switchyard.cli.engine.dead.letters import index_new_letters
from switchyard.cli.engine.dead.options import AllOption, IdsArgument, with_ids, with_letter_filter
from switchyard.cli.engine.dead.purge import DryRunOption, confirm_letters, make_announced_sleep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkHold, BulkOperation
    from switchyard.services.engine.redrive.sending import RedriveCounts
    from switchyard.services.engine.redrive.spec import RedriveSpec


@with_letter_filter
def redrive(
    ids: IdsArgument = None,
    everything: AllOption = False,
    to: ToOption = None,
    assignments: SetOption = None,
    merge: MergeOption = None,
    jq: JqOption = None,
    priority: PriorityOption = None,
    max_attempts: AttemptsOption = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of letters, oldest first. Default: no limit."),
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Send this many first, and the others only after all of these have "
            "succeeded. If one fails, the redrive halts.",
        ),
    ] = None,
    rate: RateOption = None,
    halt_on: Annotated[
        str | None,
        typer.Option(
            metavar="N%",
            help="Halt when this percentage of the finished jobs has failed again, for "
            "example 20%.",
        ),
    ] = None,
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger",
            help="Redrive the ledger's copy of letters that the broker no longer has.",
        ),
    ] = False,
    why: WhyOption = None,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once; a scheduler runs the redrive.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
    *,
    letter_filter: Any,
) -> None:
    """Send dead letters back to their lanes, with all their attempts available again.

    Give ids, filters or --all. A letter is removed from the dead letters only after the broker has
    confirmed its copy. For more than one letter it asks for confirmation. Ctrl-C pauses the redrive
    and prints how to continue. Exit code 1: an id or group is unknown, some letters are invalid, or
    the redrive was halted or paused.

    Examples:

    ```
    jobctl dead redrive ID
    jobctl dead redrive --group ab12cd34 --dry-run
    jobctl dead redrive --group ab12cd34 --canary 5 --rate 50/s --halt-on 20%
    jobctl dead redrive ID --set payload.max_words=80
    ```
    """
    from switchyard.services.engine.redrive.spec import RedriveSpec

    letter_filter = with_ids(letter_filter, ids, everything=everything)
    spec = RedriveSpec(
        letter_filter,
        make_change(to, assignments, merge, jq, priority, max_attempts),
        limit=limit,
        canary=canary,
        halt_on=None if halt_on is None else parse_percentage(halt_on),
        from_ledger=from_ledger,
        remote=False,
    )
    spec.check()
    per_second = parse_optional_rate(rate)
    if not (dry_run or yes or limit == 1 or len(letter_filter.ids) == 1):
        require_answer("redrive")
    quiet_logs()
    run(
        _redrive(
            spec,
            rate=per_second,
            why=why,
            background=background,
            dry_run=dry_run,
            yes=yes,
            include=include,
            as_json=as_json,
        )
    )


async def _redrive(
    spec: RedriveSpec,
    *,
    rate: float | None,
    why: str | None,
    background: bool,
    dry_run: bool,
    yes: bool,
    include: list[str] | None,
    as_json: bool,
) -> None:
    from switchyard.services.engine.dead.groups import with_full_ids
    from switchyard.services.engine.redrive.plan import plan_redrive

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    async with open_ledger(settings, registry) as ledger:
        # Index first: a letter that is indexed only after it was sent would be listed as waiting.
        await index_new_letters(settings, ledger, registry)
        spec = replace(spec, which=await with_full_ids(ledger, spec.which))
        if dry_run:
            plan = await plan_redrive(settings, registry, ledger, spec, wait=make_announced_sleep())
            report_plan(spec, plan, as_json=as_json)
            return
        if not yes and not (spec.limit == 1 or len(spec.which.ids) == 1):
            if spec.from_ledger:
                plan = await plan_redrive(
                    settings, registry, ledger, spec, wait=make_announced_sleep()
                )
                number = plan.matched
            else:
                number = await ledger.dead_letters.count_dead(
                    spec.which.for_index("waiting", ledger.clock.now())
                )
            if number > 1:
                confirm_letters("redrive", min(number, spec.limit or number), spec.which)
        await run_and_report(
            settings,
            registry,
            ledger,
            spec,
            rate=rate,
            why=why,
            background=background,
            as_json=as_json,
        )


async def run_and_report(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    spec: RedriveSpec,
    *,
    rate: float | None = None,
    why: str | None = None,
    background: bool = False,
    as_json: bool = False,
) -> None:
    """Record a redrive, run it in this process unless a scheduler is to run it, and report."""
    from switchyard.cli.base.common import current_user
    from switchyard.cli.engine.dead.view import RedriveDisplay
    from switchyard.services.engine.bulk.shown import shown_operation
    from switchyard.services.engine.redrive.spec import start_redrive

    async def start(hold: BulkHold | None) -> BulkOperation:
        return await start_redrive(
            ledger, spec, created_by=current_user(), reason=why, rate=rate, hold=hold
        )

    if background:
        operation = shown_operation(registry, await start(None))
        RedriveDisplay().report_start(operation, as_json=as_json)
    else:
        operation = await run_redrive(settings, registry, ledger, start)
        report(spec, shown_operation(registry, operation), as_json=as_json)


async def run_redrive(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    start: Callable[[BulkHold], Awaitable[BulkOperation]],
) -> BulkOperation:
    """Start or resume a redrive and run it in this process; SIGINT and SIGTERM pause it."""
    from switchyard.cli.engine.bulk.foreground import run_in_foreground
    from switchyard.services.engine.bulk import control as bulk_control
    from switchyard.services.engine.redrive.handler import RedriveHandler

    return await run_in_foreground(
        ledger,
        [RedriveHandler(settings, registry, ledger)],
        start,
        counted="redriven",
        stop=lambda operation_id: bulk_control.pause(ledger, operation_id, "by Ctrl-C"),
    )


def report(spec: RedriveSpec, operation: BulkOperation, *, as_json: bool) -> None:
    """Print how a redrive ended. Raises CommandFailed unless it sent all letters that it was to
    send."""
    from switchyard.cli.engine.dead.view import RedriveDisplay
    from switchyard.services.engine.records.bulk import BulkState
    from switchyard.services.engine.redrive.spec import RedriveProgress

    display = RedriveDisplay()
    progress = RedriveProgress.from_operation(operation)
    seen = progress.redriven + progress.dropped + progress.invalid
    missing = max(0, len(spec.which.ids) - seen) if spec.which.ids else 0
    if as_json:
        print_json(display.to_model(operation))
    else:
        for note in progress.notes:
            say(note)
        if operation.state is BulkState.COMPLETED and operation.note:
            say(operation.note)
        echo(summary(progress.redriven, progress.dropped, progress.invalid, "redriven"))
        if progress.redriven > 1:
            say(f"What becomes of them: `jobctl dead redrives show {operation.id}`")
    display.require_success(operation)
    _require_complete(missing, progress.invalid)


def report_plan(spec: RedriveSpec, counts: RedriveCounts, *, as_json: bool) -> None:
    """Print which letters would go where. Raises CommandFailed if some could not go."""
    missing = max(0, len(spec.which.ids) - counts.matched) if spec.which.ids else 0
    if as_json:
        from switchyard.api.views.dead import view_redrive_plan

        print_json(view_redrive_plan(spec, counts))
    else:
        for note in counts.notes:
            say(note)
        for each in counts.differences:
            echo(f"{each.letter_id}:")
            for line in each.lines or ("  nothing would change",):
                echo(f"  {line}" if each.lines else line)
        for routing_key, number in sorted(counts.routes.items()):
            echo(f"{number:,} to {routing_key}")
        echo(summary(counts.done, counts.dropped, counts.invalid, "would be redriven"))
    _require_complete(missing, counts.invalid)


def summary(done: int, dropped: int, invalid: int, verb: str) -> str:
    """Summarise a redrive in one line."""
    parts = [f"{done:,} {verb}"]
    if dropped:
        parts.append(f"{dropped:,} dropped: their jobs have ended meanwhile")
    if invalid:
        parts.append(f"{invalid:,} not valid: still dead letters")
    return "; ".join(parts)


def _require_complete(missing: int, invalid: int) -> None:
    if missing:
        raise CommandFailed(
            f"{missing} of these ids not found in jobs.dead: see `jobctl dead list --state all`; "
            "what only the ledger has goes back with --from-ledger"
        )
    if invalid:
        still = pluralize(invalid, "dead letter is", "dead letters are")
        raise CommandFailed(f"{still} still in {'its' if invalid == 1 else 'their'} place")


def parse_percentage(text: str) -> float:
    """Parse `20%` or `0.2` into a fraction. Raises WrongUsage."""
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = 0
    if not 0 < number <= 1:
        raise WrongUsage(f"--halt-on {text!r}: write it as 20%")
    return number
