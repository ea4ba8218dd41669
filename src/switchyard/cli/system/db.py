"""`jobctl db`: the ledger's tables, and its users."""

from __future__ import annotations

from typing import Annotated

import typer

from switchyard.cli.base.common import load_settings, run
from switchyard.cli.base.output import JsonOption, echo
from switchyard.cli.system.printed_users import RenewOption, print_users

app = typer.Typer(
    no_args_is_help=True,
    help="The ledger (database of jobs): create or upgrade its tables, and its users.",
)


@app.command()
def upgrade() -> None:
    """Create the ledger, or upgrade its tables to this version. Prints its location.

    Can be repeated safely.
    """
    from switchyard.services.engine.ledger import upgrade as upgrade_ledger

    done = run(upgrade_ledger(load_settings().ledger_url))
    if done.is_new:
        echo(f"A new ledger: {done.location}")
    else:
        echo(f"The ledger is up to date: {done.location}")


@app.command()
def users(
    prefix: Annotated[
        str, typer.Option(help="Prefix of the user names: PREFIX_application, PREFIX_reader.")
    ] = "switchyard",
    renew: RenewOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create PostgreSQL users: one that reads and writes rows, and one that only reads them.

    Prints the JOBS_DATABASE_URL of each user with its password; passwords are shown only once.
    A password from JOBS_APPLICATION_PASSWORD or JOBS_READER_PASSWORD is used as it is, and not
    printed. JOBS_DATABASE_URL must name the owner of the tables, who needs the privilege
    CREATEROLE.
    """
    from switchyard.services.engine.ledger.sql.database_users import make_database_users

    settings = load_settings()
    url, given = settings.ledger_url, settings.database_passwords
    made_users = run(make_database_users(url, prefix, renew=renew, passwords=given))
    print_users(made_users, lambda: url, given, as_json=as_json)
