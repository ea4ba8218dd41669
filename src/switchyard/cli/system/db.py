"""`jobctl db`: the ledger's tables."""

from __future__ import annotations

import typer

from switchyard.cli.base.common import load_settings, run
from switchyard.cli.base.output import echo

app = typer.Typer(
    no_args_is_help=True, help="The ledger (database of jobs): create or upgrade its tables."
)


@app.callback()
def _group() -> None:
    # Without it, typer would make the only command of the group the group itself.
    """The ledger's tables."""


@app.command()
def upgrade() -> None:
    """Create the ledger, or upgrade its tables to this version. Prints its location.

    Can be repeated safely.
    """
    from switchyard.services.ledger import upgrade as bring_up_to_date

    done = run(bring_up_to_date(load_settings().ledger_url))
    if done.is_new:
        echo(f"A new ledger: {done.where}")
    else:
        echo(f"The ledger is up to date: {done.where}")
