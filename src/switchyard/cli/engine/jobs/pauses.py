"""`jobctl pause`, `resume`, `pauses`: keep jobs from starting, and let them start again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.times import format_local
from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import current_user, load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import DURATION_HELP, age, parse_optional_duration
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.pauses import NewPause, PauseRecord, PauseScope
    from switchyard.services.engine.records.states import State

MAX_NAMED = 10
"""Pauses that an error names."""

LaneTarget = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="A lane: hot, vlm_ocr, …")
]
TypeTarget = Annotated[
    str | None, typer.Option("--type", metavar="JOB_TYPE", help="A job type, in all lanes.")
]
SourceTarget = Annotated[
    str | None,
    typer.Option("--source", metavar="SOURCE", help="Jobs of one source, as `jobs show` names it."),
]
QueueTarget = Annotated[
    str | None,
    typer.Option("--queue", metavar="LANE.KIND", help="One worker kind's jobs of a lane: hot.llm."),
]


def pause(
    lane: LaneTarget = None,
    job_type: TypeTarget = None,
    source: SourceTarget = None,
    queue: QueueTarget = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why, for all who see the pause.")
    ] = None,
    ends_after: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="TIME", help=f"End by itself after this time, {DURATION_HELP}."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a lane, a job type, a source or a queue: its jobs do not begin.

    It holds at once and in the whole fleet. Running jobs end normally. Waiting and new jobs are
    kept in the ledger: none is lost, none expires. A pause of the same target is replaced.

    Examples:

    ```
    jobctl pause --type summarize_content --reason "new model" --for 2h
    jobctl pause --lane backfill
    ```
    """
    quiet_logs()
    from switchyard.services.engine.records.pauses import (
        MAX_REASON_LENGTH,
        MAX_TARGET_LENGTH,
        NewPause,
    )

    scope, target = _target_of(lane, job_type, source, queue)
    if not target or len(target) > MAX_TARGET_LENGTH:
        raise WrongUsage(f"--{scope} takes 1 to {MAX_TARGET_LENGTH} characters")
    if reason is not None and len(reason) > MAX_REASON_LENGTH:
        raise WrongUsage(f"--reason takes at most {MAX_REASON_LENGTH} characters")
    try:
        new_pause = NewPause(
            scope, target, current_user(), reason, parse_optional_duration(ends_after)
        )
    except ValueError as error:
        raise WrongUsage(str(error)) from error
    record, counts = run(_pause(load_settings(), new_pause))
    if as_json:
        from switchyard.api.views.pauses import view_pause

        print_json(view_pause(record))
        return
    echo(record.id)
    until = "" if record.ends_at is None else f" until {format_local(record.ends_at, zoned=True)}"
    say(f"{record} is paused{until}; `jobctl resume --{scope} {target}` lets it go on.")
    say(_describe_counts(counts))


def resume(
    pause_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Id of the pause, from `jobctl pauses`.")
    ] = None,
    lane: LaneTarget = None,
    job_type: TypeTarget = None,
    source: SourceTarget = None,
    queue: QueueTarget = None,
    everything: Annotated[
        bool, typer.Option("--all", help="End all pauses that are in force.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """End a pause; the jobs that it held are published, oldest first.

    Without an id or a target, it fails and lists what is paused. Exit code 1: it is not paused.

    Examples:

    ```
    jobctl resume --type summarize_content
    jobctl resume pause-4f0c2a9b11de
    ```
    """
    quiet_logs()
    targets = (lane, job_type, source, queue)
    ways = (pause_id is not None, any(each is not None for each in targets), everything)
    if sum(ways) > 1:
        raise WrongUsage("name the pause by its id or by what is paused, or give --all: only one")
    if not any(ways):
        active = run(_active(load_settings()))
        if not active:
            raise CommandFailed("nothing is paused")
        texts = [f"{each} ({each.id})" for each in active[:MAX_NAMED]]
        if len(active) > MAX_NAMED:
            texts.append(f"{len(active) - MAX_NAMED} more: `jobctl pauses`")
        raise WrongUsage("name one of the pauses by its id, or give --all: " + ", ".join(texts))
    if everything:
        _resume_all(as_json=as_json)
        return
    target = None if pause_id is not None else _target_of(*targets)
    record = run(_resume(load_settings(), pause_id, target))
    if record is None:
        what = pause_id if target is None else f"{target[0]} {target[1]}"
        raise CommandFailed(f"{what} is not paused: `jobctl pauses` shows what is")
    if as_json:
        from switchyard.api.views.pauses import view_pause

        print_json(view_pause(record))
        return
    echo(record.id)
    say(f"{record} goes on, after {age(record.created_at)}.")


def _resume_all(*, as_json: bool) -> None:
    from switchyard.api.views.pauses import view_pause

    async def end_each(settings: Settings) -> list[PauseRecord]:
        async with open_ledger(settings) as ledger:
            active = (await ledger.pauses.active()).pauses
            ended = [await ledger.pauses.resume(each.id, current_user()) for each in active]
        return [each for each in ended if each is not None]

    records = run(end_each(load_settings()))
    if as_json:
        print_json([view_pause(each) for each in records])
        return
    for record in records:
        echo(record.id)
        say(f"{record} goes on, after {age(record.created_at)}.")
    if not records:
        say("Nothing is paused.")


def pauses(
    ended: Annotated[
        bool, typer.Option("--ended", help="List the pauses that have ended, latest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of results.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """List what is paused: by whom, why, until when, and how many jobs it holds."""
    quiet_logs()
    run(_list(load_settings(), ended=ended, limit=limit, as_json=as_json))


async def _list(settings: Settings, *, ended: bool, limit: int, as_json: bool) -> None:
    from switchyard.api.views.pauses import view_pauses

    async with open_ledger(settings) as ledger:
        pauses = await view_pauses(ledger, ended=ended, limit=limit)
    if as_json:
        print_json(pauses.pauses)
        return
    if not pauses.pauses:
        say("No pause has ended within 90 days." if ended else "Nothing is paused.")
        return
    last = "ENDED" if ended else "UNTIL"
    rows = table("ID", "PAUSED", "BY", "SINCE", last, "JOBS", "REASON", flexible=("REASON",))
    for each in pauses.pauses:
        ends = each.ended_at or each.ends_at if ended else each.ends_at
        add_row(
            rows,
            each.pause_id,
            cell(f"{each.scope} {each.target}"),
            cell(each.created_by),
            age(each.created_at.timestamp()),
            "" if ends is None else format_local(ends.timestamp()),
            "" if each.held is None else f"{each.held:,}",
            cell(each.reason),
        )
    console().print(rows)


async def _pause(settings: Settings, new_pause: NewPause) -> tuple[PauseRecord, dict[State, int]]:
    async with open_ledger(settings) as ledger:
        record = await ledger.pauses.pause(new_pause)
        return record, await ledger.pauses.counts(new_pause.scope, new_pause.target)


async def _active(settings: Settings) -> Sequence[PauseRecord]:
    async with open_ledger(settings) as ledger:
        return (await ledger.pauses.active()).pauses


async def _resume(
    settings: Settings, pause_id: str | None, target: tuple[PauseScope, str] | None
) -> PauseRecord | None:
    async with open_ledger(settings) as ledger:
        if target is None:
            return await ledger.pauses.resume(pause_id or "", current_user())
        return await ledger.pauses.resume_target(*target, current_user())


def _target_of(
    lane: str | None, job_type: str | None, source: str | None, queue: str | None
) -> tuple[PauseScope, str]:
    """Return the one target that was given. Raises WrongUsage for none, or several."""
    from switchyard.services.engine.records.pauses import PauseScope

    targets = {
        PauseScope.LANE: lane,
        PauseScope.TYPE: job_type,
        PauseScope.SOURCE: source,
        PauseScope.QUEUE: queue,
    }
    named = [(scope, target) for scope, target in targets.items() if target is not None]
    if len(named) != 1:
        raise WrongUsage("name one of --lane, --type, --source and --queue")
    return named[0]


def _describe_counts(counts: dict[State, int]) -> str:
    """Describe how many jobs of a new pause's target wait and run, so that a wrong name is seen at
    once."""
    from switchyard.services.engine.ledger.pauses import MAX_COUNTED
    from switchyard.services.engine.records.states import State

    running = counts.get(State.RUNNING, 0)
    waiting = sum(number for state, number in counts.items() if state is not State.RUNNING)
    if not running and not waiting:
        return "No job of it waits or runs now."
    more = " or more" if any(number >= MAX_COUNTED for number in counts.values()) else ""
    text = pluralize(waiting, f"job{more} of it waits", f"jobs{more} of it wait")
    if running:
        text += f"; {pluralize(running, 'job that runs ends', 'jobs that run end')} normally"
    return text
