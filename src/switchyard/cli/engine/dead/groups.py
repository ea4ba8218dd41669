"""`jobctl dead groups`: dead letters by cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import (
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.durations import age
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    plain,
    print_json,
    say,
    table,
)
from switchyard.cli.engine.dead.letters import bring_up_to_date, known_state

if TYPE_CHECKING:
    from rich.table import Table

    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.records.results import DeadGroup

SPARKS = "▁▂▃▄▅▆▇█"
EXAMPLE_LENGTH = 80
"""Characters of one letter's message."""
WIDE_COLUMNS = 130
"""Columns from which on there is room for everything."""


def groups(
    state: Annotated[
        str,
        typer.Option(help="waiting, redriven, purged, dropped (no longer on the broker), or all."),
    ] = "waiting",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of results.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by cause, most frequent first, with first and last death.

    Next steps for a group:

    ```
    jobctl dead list --group GROUP
    jobctl dead redrive --group GROUP --dry-run
    ```
    """
    wanted = known_state(state)
    quiet_logs()

    async def read(settings: Settings, registry: Registry) -> list[DeadGroup]:
        async with open_ledger(settings) as ledger:
            await bring_up_to_date(settings, ledger, registry)
            return await ledger.dead_letters.dead_groups(state=wanted, limit=limit)

    settings = load_settings()
    found = run(read(settings, load_registry(settings)))
    if as_json:
        print_json([group_json(group) for group in found])
        return
    if not found:
        say("No dead letters." if state == "waiting" else f"No dead letters ({state}).")
        return
    screen = console()
    screen.print(listing(found, screen.width))
    say("One of them: `jobctl dead list --group GROUP`; back: `jobctl dead redrive --group GROUP`.")


def listing(found: Sequence[DeadGroup], width: int) -> Table:
    """The groups on a terminal of that many columns. What is left out on a narrow one is the bar,
    the first time and the reason where an error says more: the cause is what one looks for."""
    if width < WIDE_COLUMNS:
        rows = table(
            "GROUP", "COUNT", "LAST", "CAUSE", flexible=("CAUSE",), right=("COUNT", "LAST")
        )
        for group in found:
            described = group_json(group)
            cause = error_of(described) or described["reason"]
            last, number = age(group.last_at), f"{group.count:,}"
            what = f"{described['job_type']}: {cause}" if described["job_type"] else cause
            add_row(rows, group.fingerprint, number, last, cell(what))
        return rows
    rows = table(
        "GROUP", "COUNT", "FIRST", "LAST", "24 H", "JOB", "REASON", "ERROR",
        flexible=("JOB", "ERROR"), right=("COUNT", "FIRST", "LAST"),
    )  # fmt: skip
    for group in found:
        described = group_json(group)
        add_row(
            rows,
            group.fingerprint,
            f"{group.count:,}",
            age(group.first_at),
            age(group.last_at),
            sparkline(group.trend),
            cell(described["job_type"]),
            cell(described["reason"]),
            cell(error_of(described)),
        )
    return rows


def error_of(described: Mapping[str, Any]) -> str:
    """The error of a group in one line, and where it was raised; empty where there was none."""
    error = ": ".join(part for part in (described["error_type"], described["message"]) if part)
    if example := _example(described["message"] or "", described["sample_message"] or ""):
        error += f", for example {example}"
    return f"{error} ({described['location']})" if described["location"] else error


def _example(cause: str, message: str) -> str:
    """The message of one letter, where the cause says nothing but that it varies: the key of a
    KeyError tells which."""
    says_more = re.search(r"\w", re.sub(r"<[a-z]+>", "", cause))
    return "" if says_more or not cause else " ".join(message.split())[:EXAMPLE_LENGTH]


def group_json(group: DeadGroup) -> dict[str, Any]:
    """A group as `--json` prints it."""
    from switchyard.services.engine.dead.causes import cause_of

    sample = group.sample
    cause = cause_of(
        sample.reason, sample.job_type, sample.error_type, sample.error_message, sample.traceback
    )
    shown: dict[str, Any] = plain(
        {
            "group": group.fingerprint,
            "count": group.count,
            "first_at": group.first_at,
            "last_at": group.last_at,
            "last_hour": group.trend[-1],
            "hour_before": group.trend[-2],
            "trend": list(group.trend),
            "job_type": cause.job_type or None,
            "reason": cause.reason,
            "error_type": cause.error_type or None,
            "message": cause.message or None,
            "location": cause.location or None,
            "sample_id": sample.id,
            "sample_message": sample.error_message,
        }
    )
    return shown


def sparkline(numbers: tuple[int, ...]) -> str:
    """Numbers as a row of bars; nothing where there is nothing."""
    most = max(numbers, default=0)
    if not most:
        return ""
    return "".join(
        " " if not number else SPARKS[min(7, (number * 8 - 1) // most)] for number in numbers
    )
