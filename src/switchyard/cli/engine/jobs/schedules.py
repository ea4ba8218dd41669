"""`jobctl schedules`: jobs that are published at their times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from switchyard.broker.times import format_local
from switchyard.cli.base.common import (
    IncludeOption,
    PriorityOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.durations import age, parse_duration
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    styled,
    table,
)
from switchyard.cli.base.shared_options import TagOption, tags_of

if TYPE_CHECKING:
    from switchyard.services.engine.records.schedules import ScheduleRecord
    from switchyard.services.engine.schedules.service import Schedules

T = TypeVar("T")
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the schedule, from `jobctl schedules list`.")
]

app = typer.Typer(
    no_args_is_help=True, help="Schedules: list, add, remove, pause, resume, run, history."
)


@app.command("list")
def list_schedules(as_json: JsonOption = False) -> None:
    """List schedules, with the next due time and the result of the last one."""
    schedules = _run_with_schedules(None, lambda schedules: schedules.list_all())
    if as_json:
        from switchyard.api.views.system import view_schedule

        print_json([view_schedule(record, last) for record, last in schedules])
        return
    if not schedules:
        say("No schedules: `jobctl schedules add NAME CRON JOB`, or a file at JOBS_SCHEDULES.")
        return
    rows = table("NAME", "CRON", "ZONE", "JOB", "NEXT", "LAST", "FROM", flexible=("JOB",))
    for record, last in schedules:
        add_row(
            rows,
            cell(record.name),
            cell(record.cron),
            cell(record.timezone),
            cell(record.routing_key),
            styled("paused") if record.paused_at is not None else format_local(record.next_at),
            "" if last is None else f"{last.outcome}, {age(last.noted_at)} ago",
            record.origin,
        )
    console().print(rows)


@app.command()
def add(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Unique name: lower-case letters, digits, - and _."),
    ],
    cron: Annotated[
        str,
        typer.Argument(
            metavar="CRON", help="Cron expression with five fields, for example '30 6 * * 1-5'."
        ),
    ],
    routing_key: Annotated[
        str, typer.Argument(metavar="JOB", help="LANE.JOB_TYPE, for example hot.ingest_arxiv.")
    ],
    payload: Annotated[str, typer.Option(metavar="JSON|@FILE", help="Payload of the jobs.")] = "{}",
    timezone: Annotated[
        str,
        typer.Option(
            "--timezone",
            metavar="ZONE",
            help="Time zone of CRON, an IANA name such as Europe/Berlin.",
        ),
    ] = "UTC",
    priority: PriorityOption = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Maximum number of attempts. Default: the job type's."),
    ] = None,
    tags: TagOption = None,
    jitter: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Delay each due time by a random time up to this, at most 1h."
        ),
    ] = "0s",
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Fire a missed due time up to this much later, at most 24h."
        ),
    ] = "1h",
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    r"""Add a schedule. Its job is validated like that of `jobctl publish`.

    Example:

    ```
    jobctl schedules add papers '30 6 * * 1-5' hot.ingest_arxiv \
        --timezone Europe/Berlin --payload '{"query": "cat:cs.DB"}'
    ```
    """
    from switchyard.cli.base.common import current_user
    from switchyard.cli.base.payloads import read_argument
    from switchyard.services.engine.schedules.entry import ScheduleEntry
    from switchyard.services.engine.schedules.rule import CronRule

    entry = ScheduleEntry.from_fields(
        {
            "name": name,
            "cron": cron,
            "timezone": timezone,
            "job": routing_key,
            "payload": read_argument(payload),
            "priority": priority,
            "max_attempts": max_attempts,
            "tags": tags_of(tags),
            "jitter": parse_duration(jitter),
            "grace": parse_duration(grace),
        }
    )
    record = _run_with_schedules(
        include or [],
        lambda schedules: schedules.add(entry, remote=False, created_by=current_user()),
    )
    rule = CronRule.parse(record.cron, record.timezone)
    times = (record.next_at, *rule.next_times(record.next_at, 2))
    due_times = ", ".join(format_local(each, zoned=True) for each in times)
    note = rule.days_note
    _print_schedule(
        record, f"{name} is due next at {due_times}.{f' {note}' if note else ''}", as_json
    )


@app.command()
def remove(name: NameArgument) -> None:
    """Remove an added schedule and its history. Jobs that it has published still run."""
    _run_with_schedules(None, lambda schedules: schedules.remove(name))
    echo(f"{name} removed")


@app.command()
def pause(name: NameArgument, as_json: JsonOption = False) -> None:
    """Pause a schedule. Due times during the pause are neither fired nor counted as missed."""
    record = _run_with_schedules(None, lambda schedules: schedules.pause(name))
    _print_schedule(
        record, f"{name} is paused; `jobctl schedules resume {name}` lets it go on.", as_json
    )


@app.command()
def resume(name: NameArgument, as_json: JsonOption = False) -> None:
    """Resume a schedule with its next due time."""
    record = _run_with_schedules(None, lambda schedules: schedules.resume(name))
    _print_schedule(record, f"{name} is due at {format_local(record.next_at)}.", as_json)


@app.command("run")
def run_now(name: NameArgument, include: IncludeOption = None, as_json: JsonOption = False) -> None:
    """Fire a schedule now, even if it is paused, and print the id of its job."""
    from switchyard.cli.base.common import current_user

    firing = _run_with_schedules(
        include or [], lambda schedules: schedules.run(name, current_user())
    )
    if as_json:
        from switchyard.api.views.system import view_firing

        print_json(view_firing(firing))
        return
    echo(firing.job_id or "")
    say(f"A scheduler publishes it; see `jobctl schedules history {name}`.")


@app.command()
def history(
    name: NameArgument,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of results.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the results of a schedule's due times, newest first."""
    firings = _run_with_schedules(None, lambda schedules: schedules.history(name, limit))
    if as_json:
        from switchyard.api.views.system import view_firing

        print_json([view_firing(each) for each in firings])
        return
    if not firings:
        say(f"{name} has not been due yet.")
        return
    rows = table("DUE", "OUTCOME", "TIMES", "JOB", "NOTE", flexible=("NOTE",))
    for each in firings:
        add_row(
            rows,
            format_local(each.due_at),
            each.outcome,
            str(each.times),
            cell(each.job_id),
            cell(each.note),
        )
    console().print(rows)


def _run_with_schedules(include: list[str] | None, work: Callable[[Schedules], Awaitable[T]]) -> T:
    """Run `work` with the schedules. Modules are loaded only where `include` is given, as that
    takes a while."""
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.schedules.service import Schedules

    quiet_logs()
    settings = load_settings()
    registry = Registry() if include is None else load_registry(settings, include)

    async def run_work() -> T:
        async with open_ledger(settings, registry) as ledger:
            return await work(Schedules(ledger, registry))

    return run(run_work())


def _print_schedule(record: ScheduleRecord, text: str, as_json: bool) -> None:
    if as_json:
        from switchyard.api.views.system import view_schedule

        print_json(view_schedule(record))
    else:
        echo(text)
