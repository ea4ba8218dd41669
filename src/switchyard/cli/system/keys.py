"""`jobctl keys`: who may use the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    cell,
    console,
    echo,
    print_json,
    print_rows,
    say,
    table,
)
from switchyard.cli.base.shared_options import with_options

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.access.api_keys import NewKey, Scope
    from switchyard.services.engine.records.system import ApiKeyRecord, KeyLimits

app = typer.Typer(no_args_is_help=True, help="Create, limit, list and revoke keys of the HTTP API.")

KeyIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the key, from `jobctl keys list`.")
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="PATTERN",
        help="Model that the key may name, such as 'gpt-*'; repeatable. Default: all.",
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option("--max-priority", min=0, max=10, help="Highest priority of its requests."),
]
RequestsOption = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=1, max=10_000_000, help="Requests a minute."),
]
TokensOption = Annotated[
    int | None,
    typer.Option("--tokens-per-minute", min=1, max=1_000_000_000, help="Tokens a minute."),
]
DayOption = Annotated[
    float | None,
    typer.Option(
        "--budget-per-day", min=0, help="What its requests may cost a day; needs JOBS_LLM_PRICES."
    ),
]
MonthOption = Annotated[
    float | None,
    typer.Option("--budget-per-month", min=0, help="What its requests may cost a month."),
]


def _limit_options(
    models: ModelsOption = None,
    max_priority: PriorityOption = None,
    requests_per_minute: RequestsOption = None,
    tokens_per_minute: TokensOption = None,
    budget_per_day: DayOption = None,
    budget_per_month: MonthOption = None,
) -> Any:
    """Return the KeyLimits that the options describe; None for no limits. Raises WrongUsage."""
    from switchyard.services.engine.records.system import KeyLimits

    budgets = (budget_per_day, budget_per_month)
    if any(each is not None for each in budgets) and load_settings().llm_prices is None:
        raise WrongUsage("a budget needs prices: set JOBS_LLM_PRICES")
    limits = KeyLimits(
        tuple(models or ()), max_priority, requests_per_minute, tokens_per_minute, *budgets
    )
    return None if limits == KeyLimits() else limits


with_limits = with_options(_limit_options, "limits")
"""Give a command the options for the limits of a key; it gets them as `limits`."""


@app.command()
@with_limits
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
    *,
    limits: Any,
) -> None:
    """Create a key and print it. It is shown only once: the ledger stores its hash.

    With any limit, the key is for the OpenAI-compatible API (/v1) alone.

    Example:

    ```
    jobctl keys create 'ingest of the archive' --scope publish --scope read
    ```
    """
    quiet_logs()
    scopes = _scopes(scope or ["publish", "read"])
    new_key = run(_create(load_settings(), name, scopes, limits))
    if as_json:
        print_json({"id": new_key.id, "key": new_key.key, "scopes": [str(each) for each in scopes]})
        return
    say(f"Key {new_key.id} ({', '.join(scopes)}). It is not shown again:")
    echo(new_key.key)
    say(
        "From now on every request to the HTTP API needs a key, also from this machine; jobctl and "
        "the Python client send the one in JOBS_API_KEY."
    )


@app.command("limit")
@with_limits
def limit_key(
    key_id: KeyIdArgument,
    *,
    limits: Any,
) -> None:
    """Set the limits of a key, in the place of those that it has; without options, lift them.

    All API processes keep to them within two seconds.
    """
    quiet_logs()
    if not run(_set_limits(load_settings(), key_id, limits)):
        raise CommandFailed(f"there is no key {key_id}: see `jobctl keys list`")
    echo(f"{key_id}: {limits or 'no limits'}")


@app.command()
def show(
    key_id: KeyIdArgument,
    as_json: JsonOption = False,
) -> None:
    """Show a key, its limits, and what it has spent of its budgets."""
    quiet_logs()
    record, budgets = run(_show(load_settings(), key_id))
    if record is None:
        raise CommandFailed(f"there is no key {key_id}: see `jobctl keys list`")
    if as_json:
        from switchyard.api.views.system import view_key

        print_json({**view_key(record).model_dump(mode="json"), "budgets": budgets})
        return
    print_rows(
        [
            ("id", record.id),
            ("name", cell(record.name)),
            ("scopes", ", ".join(record.scopes)),
            ("state", "usable" if record.revoked_at is None else "revoked"),
            ("limits", str(record.limits or "none")),
            *((each["name"], f"{each['spent']:g} of {each['limit']:g}") for each in budgets),
        ]
    )


@app.command("list")
def list_keys(as_json: JsonOption = False) -> None:
    """List the keys in the ledger. Keys from JOBS_API_KEYS are not listed."""
    quiet_logs()
    records = run(_list(load_settings()))
    if as_json:
        from switchyard.api.views.system import view_key

        print_json([view_key(key) for key in records])
        return
    if not records:
        say("No keys: make one with `jobctl keys create NAME`.")
        return
    rows = table(
        "ID", "NAME", "SCOPES", "MADE", "USED", "STATE", "LIMITS", flexible=("NAME", "LIMITS")
    )
    for key in records:
        rows.add_row(
            key.id,
            cell(key.name),
            ",".join(key.scopes),
            age(key.created_at),
            "never" if key.last_used_at is None else age(key.last_used_at),
            "usable" if key.revoked_at is None else "revoked",
            cell(str(key.limits or "")),
        )
    console().print(rows)


@app.command()
def revoke(
    key_id: KeyIdArgument,
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


async def _create(
    settings: Settings, name: str, scopes: list[Scope], limits: KeyLimits | None
) -> NewKey:
    from switchyard.services.engine.access.api_keys import create_key

    async with open_ledger(settings) as ledger:
        return await create_key(ledger, name, scopes, limits)


async def _set_limits(settings: Settings, key_id: str, limits: KeyLimits | None) -> bool:
    async with open_ledger(settings) as ledger:
        return await ledger.api_keys.set_key_limits(key_id, limits)


async def _show(
    settings: Settings, key_id: str
) -> tuple[ApiKeyRecord | None, list[dict[str, Any]]]:
    from switchyard.services.llm.ledger import LlmLedger

    async with open_ledger(settings) as ledger:
        record = await ledger.api_keys.get_api_key(key_id)
        if record is None or record.limits is None:
            return record, []
        budgets = await LlmLedger(ledger).spending.api_key_budgets(record.id, record.limits)
        return record, [
            {"name": each.name, "limit": each.limit, "spent": each.spent, "left": each.left}
            for each, _ in budgets
        ]


async def _list(settings: Settings) -> list[ApiKeyRecord]:
    async with open_ledger(settings) as ledger:
        return await ledger.api_keys.list_api_keys()


async def _revoke(settings: Settings, key_id: str) -> bool:
    async with open_ledger(settings) as ledger:
        return await ledger.api_keys.revoke_api_key(key_id, ledger.clock.time())
