"""`jobctl backfill`: bulk jobs that are watched, paused, resumed and cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.backfill import start as backfill_start
from switchyard.cli.base.bulk_records import change
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import FAILED, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    print_json,
    say,
    styled,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.backfill.progress import Progress
    from switchyard.services.ledger import Ledger
    from switchyard.services.records import BulkOperation

BackfillArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The backfill's id: `jobctl backfill list`.")
]

app = typer.Typer(
    no_args_is_help=True, help="Backfills: start, list, show, watch, pause, resume, cancel, set."
)
app.add_typer(backfill_start.app, name="start")


@app.command(name="list")
def list_backfills(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List backfills, the newest first."""

    async def read() -> list[Progress]:
        from switchyard.services.backfill.progress import progress_of
        from switchyard.services.backfill.spec import KIND

        async with open_ledger(load_settings()) as ledger:
            page = await ledger.list_bulk(KIND, limit=limit)
            return [await progress_of(ledger, each) for each in page.items]

    found = run(read())
    if as_json:
        from switchyard.cli.backfill.view import public

        print_json([public(each) for each in found])
        return
    if not found:
        say("No backfills. Start one: `jobctl backfill start --help`")
        return
    columns = ("ID", "STATE", "PUBLISHED", "DONE", "DEAD", "AGE", "WHAT")
    rows = table(*columns, flexible=("WHAT",), right=("PUBLISHED", "DONE", "DEAD"))
    for each in found:
        total = "" if each.total is None else f"/{each.total - each.repeated:,}"
        add_row(
            rows,
            each.operation.id,
            styled(each.operation.state),
            f"{each.published:,}{total}",
            f"{each.finished:,}",
            f"{each.dead:,}",
            age(each.operation.created_at),
            cell(each.operation.title),
        )
    console().print(rows)


@app.command()
def show(backfill_id: BackfillArgument, as_json: JsonOption = False) -> None:
    """Show how far a backfill is; at its end, its report with the dead by cause."""
    from switchyard.cli.backfill.view import print_progress, public

    progress = run(_progress(backfill_id))
    if as_json:
        print_json(public(progress))
    else:
        print_progress(progress)


@app.command()
def watch(backfill_id: BackfillArgument, as_json: JsonOption = False) -> None:
    """Follow a backfill to its end; Ctrl-C ends only the watching.

    Exit code 1: not every item was done.
    """
    from switchyard.cli.backfill.view import watch_progress

    async def follow() -> bool:
        async with open_ledger(load_settings()) as ledger:
            return await watch_progress(ledger, backfill_id, as_json=as_json)

    if not run(follow()):
        raise typer.Exit(FAILED)


@app.command()
def pause(backfill_id: BackfillArgument, as_json: JsonOption = False) -> None:
    """Publish nothing more of it, within a second, until it is resumed."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.backfill.spec import KIND
        from switchyard.services.bulk import control as bulk_control

        return await bulk_control.pause(ledger, backfill_id, kind=KIND)

    change(work, "paused; go on with `jobctl backfill resume {id}`", _limits, as_json=as_json)


@app.command()
def resume(backfill_id: BackfillArgument, as_json: JsonOption = False) -> None:
    """Go on where it was, also after it has failed or halted."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.backfill.spec import KIND
        from switchyard.services.bulk import control as bulk_control

        return await bulk_control.resume(ledger, backfill_id, kind=KIND)

    change(work, "goes on as soon as a scheduler takes it", _limits, as_json=as_json)


@app.command(name="set")
def set_limits(
    backfill_id: BackfillArgument,
    rate: Annotated[
        float | None, typer.Option(min=0, help="Jobs a second at most; 0 for no limit.")
    ] = None,
    max_open: Annotated[
        int | None,
        typer.Option(min=0, help="Unfinished jobs of it at most; 0 for no limit."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change its limits, also while it runs."""
    changes: dict[str, float | int | None] = {}
    if rate is not None:
        changes["rate"] = rate or None
    if max_open is not None:
        changes["max_open"] = max_open or None
    if not changes:
        raise WrongUsage("name --rate or --max-open")

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.backfill.spec import KIND, check_limits
        from switchyard.services.bulk.control import set_limits

        check_limits(changes)
        return await set_limits(ledger, backfill_id, changes, kind=KIND)

    change(work, "has its new limits", _limits, as_json=as_json)


@app.command()
def cancel(
    backfill_id: BackfillArgument,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Also its jobs that have not begun.")
    ] = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End it for good. What it has published runs, unless --jobs is given."""
    from switchyard.services.backfill.spec import Backfills

    quiet_logs()
    settings = load_settings()

    async def work() -> int:
        async with open_ledger(settings) as ledger:
            backfills = Backfills.of(settings, load_registry(settings, include), ledger, include)
            return await backfills.cancel(backfill_id, jobs=jobs)

    number = run(work())
    if as_json:
        print_json({"id": backfill_id, "state": "cancelled", "cancelled_jobs": number})
    else:
        say(f"{backfill_id} is cancelled" + (f", and {number:,} of its jobs" if jobs else ""))


def _limits(operation: BulkOperation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "state": operation.state,
        "rate": operation.rate,
        "max_open": operation.max_open,
    }


async def _progress(backfill_id: str) -> Progress:
    """Raises UnknownBulkOperation, also for an operation of another kind."""
    from switchyard.services.backfill.progress import progress_of
    from switchyard.services.backfill.spec import KIND
    from switchyard.services.bulk.control import require_bulk

    async with open_ledger(load_settings()) as ledger:
        return await progress_of(ledger, await require_bulk(ledger, backfill_id, KIND))
