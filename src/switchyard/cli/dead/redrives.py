"""`jobctl dead redrives`: the records of redrives; watched, paused, resumed, cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.bulk_records import change
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
from switchyard.cli.base.errors import FAILED
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
    from switchyard.services.ledger import Ledger
    from switchyard.services.records import BulkOperation

RedriveArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The redrive's id: `jobctl dead redrives list`.")
]

app = typer.Typer(
    no_args_is_help=True, help="Redrives: list, show, watch, pause, resume, cancel, set."
)


@app.command(name="list")
def list_redrives(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List redrives, the newest first."""

    async def read() -> list[BulkOperation]:
        from switchyard.services.redrive.spec import KIND, settled

        async with open_ledger(load_settings()) as ledger:
            page = await ledger.list_bulk(KIND, limit=limit)
            return [await settled(ledger, each) for each in page.items]

    found = run(read())
    if as_json:
        from switchyard.cli.dead.view import public

        print_json([public(each) for each in found])
        return
    if not found:
        say("No redrives. Start one: `jobctl dead redrive --help`")
        return
    columns = ("ID", "STATE", "REDRIVEN", "DONE", "FAILED", "BY", "AGE", "WHAT")
    rows = table(*columns, flexible=("WHAT",), right=("REDRIVEN", "DONE", "FAILED"))
    for each in found:
        counts = each.counts
        add_row(
            rows,
            each.id,
            styled(each.state),
            f"{counts.get('redriven', 0):,}",
            f"{counts.get('succeeded', 0):,}",
            f"{counts.get('failed', 0):,}",
            cell(each.created_by),
            age(each.created_at),
            cell(f"{each.title}{f' ({each.note})' if each.note else ''}"),
        )
    console().print(rows)


@app.command()
def show(redrive_id: RedriveArgument, as_json: JsonOption = False) -> None:
    """Show a redrive: who, why, what, and what has become of its letters by now."""
    from switchyard.cli.dead.view import print_redrive, public

    async def read() -> BulkOperation:
        from switchyard.services.redrive.spec import settled

        async with open_ledger(load_settings()) as ledger:
            return await settled(ledger, await _found(ledger, redrive_id))

    operation = run(read())
    if as_json:
        print_json(public(operation))
    else:
        print_redrive(operation)


@app.command()
def watch(redrive_id: RedriveArgument, as_json: JsonOption = False) -> None:
    """Follow a redrive until it stops. Exit code 1: it was not completed."""
    from switchyard.cli.dead.view import watch_redrive
    from switchyard.services.records import BulkState

    async def follow() -> BulkOperation:
        async with open_ledger(load_settings()) as ledger:
            return await watch_redrive(ledger, redrive_id, as_json=as_json)

    if run(follow()).state is not BulkState.COMPLETED:
        raise typer.Exit(FAILED)


@app.command()
def pause(redrive_id: RedriveArgument, as_json: JsonOption = False) -> None:
    """Send nothing more, within a second, until it is resumed."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.bulk import control as bulk_control
        from switchyard.services.redrive.spec import KIND

        return await bulk_control.pause(ledger, redrive_id, kind=KIND)

    change(
        work, "is paused; go on with `jobctl dead redrives resume {id}`", _public, as_json=as_json
    )


@app.command()
def resume(
    redrive_id: RedriveArgument,
    background: Annotated[
        bool, typer.Option("--background", help="Let a scheduler run it.")
    ] = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on where it was: paused, halted, or left by a process that died.

    Runs it here. After a halt it tries again, as if it began. Ctrl-C pauses it.
    """
    from switchyard.cli.dead.redrive import go_on, report
    from switchyard.cli.dead.view import public
    from switchyard.services.redrive.spec import RedriveSpec, resume_redrive

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> None:
        async with open_ledger(settings) as ledger:
            operation = await resume_redrive(ledger, redrive_id)
            if not background:
                operation = await go_on(settings, registry, ledger, operation)
                report(RedriveSpec.from_json(operation.spec), operation, as_json=as_json)
            elif as_json:
                print_json(public(operation))
            else:
                say(f"{redrive_id} goes on as soon as a scheduler takes it")

    run(work())


@app.command()
def cancel(redrive_id: RedriveArgument, as_json: JsonOption = False) -> None:
    """End it for good. What it has sent stays where it is; the rest stays dead."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.bulk import control as bulk_control
        from switchyard.services.redrive.spec import KIND

        return await bulk_control.cancel(ledger, redrive_id, kind=KIND)

    change(work, "is cancelled", _public, as_json=as_json)


@app.command(name="set")
def set_rate(
    redrive_id: RedriveArgument,
    rate: Annotated[str, typer.Option(metavar="N/s", help="Letters a second; 0 for no limit.")],
    as_json: JsonOption = False,
) -> None:
    """Change its rate, also while it runs."""
    from switchyard.cli.dead.redrive import per_second_of

    per_second = None if rate == "0" else per_second_of(rate)

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.bulk.control import set_limits
        from switchyard.services.redrive.spec import KIND

        return await set_limits(ledger, redrive_id, {"rate": per_second}, kind=KIND)

    change(work, "has its new rate", _public, as_json=as_json)


def _public(operation: BulkOperation) -> dict[str, Any]:
    from switchyard.cli.dead.view import public

    return public(operation)


async def _found(ledger: Ledger, redrive_id: str) -> BulkOperation:
    """Raises UnknownBulkOperation, also for an operation of another kind."""
    from switchyard.services.bulk.control import require_bulk
    from switchyard.services.redrive.spec import KIND

    return await require_bulk(ledger, redrive_id, KIND)
