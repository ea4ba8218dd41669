"""`jobctl system`: the system that ledger, broker, file storage and index belong to; and the check
that other commands make before they change a broker."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, require_broker, run
from switchyard.cli.base.output import JsonOption, YesOption, confirm, echo, print_json, print_rows

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.errors import LedgerError

app = typer.Typer(
    no_args_is_help=True, help="System id: which system the ledger, broker and files belong to."
)


@app.command()
def show(as_json: JsonOption = False) -> None:
    """Show the system ids of the ledger and of the broker, and whether they match."""
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    ids = run(_read_ids(settings))
    if as_json:
        print_json(ids)
    else:
        print_rows(ids.items())


@app.command()
def adopt(yes: YesOption = False) -> None:
    """Assign the broker, the file storage and the index to the system of this ledger.

    Use it if the ledger of the broker is permanently lost, or if this ledger was restored from a
    backup. Stop all processes of both systems first: running ones do not repeat the check.
    """
    from switchyard.services.engine.identity.broker import mark_broker
    from switchyard.services.engine.identity.storage_identity import claim_places

    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    ids = run(_read_ids(settings))
    if not yes and not run(_owns_all(settings)):
        print_rows(ids.items())
        confirm("Does the broker belong to this ledger from now on?", abort=True)

    async def work() -> None:
        async with open_ledger(settings) as ledger:
            await mark_broker(settings, ledger, take=True)
            await claim_places(settings, ledger, take=True)

    run(work())
    echo(f"Broker, file storage and index are of the system {ids['system']}.")


async def _owns_all(settings: Settings) -> bool:
    """Tell whether broker, files and index belong to this ledger's system already, so that adopting
    them takes them from no other system."""
    from switchyard.broker.errors import WrongSystem
    from switchyard.broker.topology.system_mark import MarkUnreadable
    from switchyard.services.engine.identity.broker import read_broker, require_same_system
    from switchyard.services.engine.identity.storage_identity import WrongStorage, claim_places

    async with open_ledger(settings) as ledger:
        try:
            await require_same_system(settings, ledger)
            is_marked = await read_broker(settings) is not None
            return is_marked and not await claim_places(settings, ledger)
        except (WrongSystem, WrongStorage, MarkUnreadable):
            return False


async def _read_ids(settings: Settings) -> dict[str, str]:
    from switchyard.broker.addresses import display_address
    from switchyard.broker.errors import WrongSystem
    from switchyard.broker.topology.system_mark import MarkUnreadable
    from switchyard.services.engine.identity.broker import read_broker, require_same_system

    async with open_ledger(settings) as ledger:
        system = await ledger.system.system()
        try:
            mark = await read_broker(settings)
            owner = str(mark) if mark is not None else "nobody has marked it"
        except MarkUnreadable as error:
            owner = str(error)
        try:
            await require_same_system(settings, ledger)
            verdict = "they go together"
        except WrongSystem as error:
            verdict = str(error)
        return {
            "system": str(system),
            "ledger": ledger.location,
            "broker": display_address(settings.require_amqp_url()),
            "broker's system": owner,
            "verdict": verdict,
        }


async def require_own_broker(settings: Settings) -> LedgerError | None:
    """Check that the broker belongs to the ledger's system. Raises WrongSystem. On a host without
    the ledger nothing can be checked: return the reason."""
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.records.errors import LedgerError

    with suppress(ValueError):
        try:
            async with open_ledger(settings) as ledger:
                await require_same_system(settings, ledger)
        except LedgerError as error:
            return error
    return None
