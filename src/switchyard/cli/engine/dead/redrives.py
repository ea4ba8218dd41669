"""`jobctl dead redrives`: list, watch, pause, resume and cancel redrives."""

from __future__ import annotations

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
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import JsonOption, print_json, say
from switchyard.cli.engine.bulk.commands import (
    IdArgument,
    add_commands,
    change,
    change_limits,
)
from switchyard.cli.engine.bulk.rates import NewRateOption, parse_new_rate
from switchyard.cli.engine.dead.view import RedriveDisplay

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkHold, BulkOperation

app = typer.Typer(
    no_args_is_help=True, help="Records of redrives: list, show, watch, pause, resume, cancel, set."
)


VIEW = RedriveDisplay()
add_commands(app, VIEW)


@app.command()
def resume(
    operation_id: IdArgument,
    background: Annotated[
        bool, typer.Option("--background", help="Return at once; a scheduler runs the redrive.")
    ] = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a redrive that was paused or halted, or whose process died.

    Runs in the foreground; Ctrl-C pauses it. After a halt it starts with a new canary and counts
    only failures from then on.
    """
    from switchyard.cli.engine.dead.redrive import report, run_redrive
    from switchyard.services.engine.bulk.shown import shown_operation
    from switchyard.services.engine.redrive.spec import RedriveSpec, resume_redrive

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> None:
        async with open_ledger(settings, registry) as ledger:
            if not background:

                async def resume(hold: BulkHold) -> BulkOperation:
                    return await resume_redrive(ledger, operation_id, hold=hold)

                operation = await run_redrive(settings, registry, ledger, resume)
                spec = RedriveSpec.from_json(operation.spec)
                report(spec, shown_operation(registry, operation), as_json=as_json)
                return
            operation = shown_operation(registry, await resume_redrive(ledger, operation_id))
            if as_json:
                print_json(VIEW.to_model(operation))
            else:
                say(f"{operation_id} goes on as soon as a scheduler takes it")

    run(work())


@app.command()
def cancel(operation_id: IdArgument, as_json: JsonOption = False) -> None:
    """End a redrive permanently.

    Letters that were sent stay in their lanes; the others stay dead letters.
    """

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.engine.bulk import control as bulk_control
        from switchyard.services.engine.redrive.spec import KIND

        return await bulk_control.cancel(ledger, operation_id, kinds=[KIND])

    change(VIEW, work, "is cancelled", as_json=as_json)


@app.command(name="set")
def set_rate(
    operation_id: IdArgument, rate: NewRateOption = None, as_json: JsonOption = False
) -> None:
    """Change the rate of a redrive, also while it runs."""
    if rate is None:
        raise WrongUsage("name --rate")
    change_limits(VIEW, operation_id, {"rate": parse_new_rate(rate)}, as_json=as_json)
