"""`jobctl keys`: who may use the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import JsonOption, cell, console, echo, print_json, say, table

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.access.api_keys import NewKey, Scope
    from switchyard.services.engine.records.system import ApiKeyRecord

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke keys of the HTTP API.")


@app.command()
def create(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the user or program that will use the key."),
    ],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="publish, read or admin (everything); repeatable. Default: publish and read.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it. It is shown only once: the ledger stores its hash.

    Example:

    ```
    jobctl keys create 'ingest of the archive' --scope publish --scope read
    ```
    """
    quiet_logs()
    scopes = _scopes(scope or ["publish", "read"])
    made = run(_create(load_settings(), name, scopes))
    if as_json:
        print_json({"id": made.id, "key": made.key, "scopes": [str(each) for each in scopes]})
        return
    say(f"Key {made.id} ({', '.join(scopes)}). It is not shown again:")
    echo(made.key)
    say(
        "From now on every request to the HTTP API needs a key, also from this machine; jobctl and "
        "the Python client send the one in JOBS_API_KEY."
    )


@app.command("list")
def list_keys(as_json: JsonOption = False) -> None:
    """List the keys in the ledger. Keys from JOBS_API_KEYS are not listed."""
    quiet_logs()
    found = run(_list(load_settings()))
    if as_json:
        from switchyard.api.views.system import view_key

        print_json([view_key(key) for key in found])
        return
    if not found:
        say("No keys: make one with `jobctl keys create NAME`.")
        return
    rows = table("ID", "NAME", "SCOPES", "MADE", "USED", "STATE", flexible=("NAME",))
    for key in found:
        rows.add_row(
            key.id,
            cell(key.name),
            ",".join(key.scopes),
            age(key.created_at),
            "never" if key.last_used_at is None else age(key.last_used_at),
            "usable" if key.revoked_at is None else "revoked",
        )
    console().print(rows)


@app.command()
def revoke(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the key, from `jobctl keys list`.")
    ],
) -> None:
    """Revoke a key permanently. All API processes refuse it within two seconds."""
    quiet_logs()
    if not run(_revoke(load_settings(), key_id)):
        raise CommandFailed(f"there is no key {key_id}: see `jobctl keys list`")
    echo(f"{key_id} revoked")


def _scopes(names: list[str]) -> list[Scope]:
    from switchyard.services.engine.access.api_keys import Scope

    try:
        return sorted({Scope(name) for name in names})
    except ValueError as error:
        raise WrongUsage(f"{error}: use {', '.join(Scope)}") from error


async def _create(settings: Settings, name: str, scopes: list[Scope]) -> NewKey:
    from switchyard.services.engine.access.api_keys import create_key

    async with open_ledger(settings) as ledger:
        return await create_key(ledger, name, scopes)


async def _list(settings: Settings) -> list[ApiKeyRecord]:
    async with open_ledger(settings) as ledger:
        return await ledger.api_keys.list_api_keys()


async def _revoke(settings: Settings, key_id: str) -> bool:
    async with open_ledger(settings) as ledger:
        return await ledger.api_keys.revoke_api_key(key_id, ledger.clock.time())
