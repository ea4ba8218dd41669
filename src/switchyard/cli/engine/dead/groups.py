"""`jobctl dead groups`: list dead letters by cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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
    print_json,
    say,
    table,
)
from switchyard.cli.base.shared_options import LimitOption
from switchyard.cli.engine.dead.letters import check_state, index_new_letters

if TYPE_CHECKING:
    from datetime import datetime

    from rich.table import Table

    from switchyard.api.models.dead import DeadGroupView
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.records.results import DeadGroup

SPARKS = "▁▂▃▄▅▆▇█"
EXAMPLE_LENGTH = 80
"""Characters of one letter's error message that are shown."""
WIDE_COLUMNS = 130
"""Width of a terminal, in columns, from which everything is shown."""


def groups(
    state: Annotated[
        str,
        typer.Option(help="waiting, redriven, purged, dropped (no longer on the broker), or all."),
    ] = "waiting",
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """List dead letters by cause, most frequent first, with first and last death.

    Next steps for a group:

    ```
    jobctl dead list --group GROUP
    jobctl dead redrive --group GROUP --dry-run
    ```
    """
    letter_state = check_state(state)
    quiet_logs()

    from switchyard.services.engine.records.requests import DeadLetterFilter

    async def read(settings: Settings, registry: Registry) -> list[DeadGroup]:
        async with open_ledger(settings, registry) as ledger:
            await index_new_letters(settings, ledger, registry)
            return await ledger.dead_letters.dead_groups(
                letter_filter=DeadLetterFilter(state=letter_state), limit=limit
            )

    settings = load_settings()
    dead_groups = run(read(settings, load_registry(settings)))
    from switchyard.api.views.dead import view_group

    described = [view_group(group) for group in dead_groups]
    if as_json:
        print_json(described)
        return
    if not dead_groups:
        say("No dead letters." if state == "waiting" else f"No dead letters ({state}).")
        return
    screen = console()
    screen.print(groups_table(described, screen.width))
    say("One of them: `jobctl dead list --group GROUP`; back: `jobctl dead redrive --group GROUP`.")


def groups_table(dead_groups: Sequence[DeadGroupView], width: int) -> Table:
    """Make the table of the groups for a terminal of `width` columns. A narrow one leaves out the
    bar, the first time, and the reason where an error says more: the cause matters most."""
    if width < WIDE_COLUMNS:
        rows = table(
            "GROUP", "COUNT", "LAST", "CAUSE", flexible=("CAUSE",), right=("COUNT", "LAST")
        )
        for group in dead_groups:
            cause = error_of(group) or group.reason
            last, number = _age(group.last_at), f"{group.count:,}"
            what = f"{group.job_type}: {cause}" if group.job_type else cause
            add_row(rows, group.group, number, last, cell(what))
        return rows
    rows = table(
        "GROUP", "COUNT", "FIRST", "LAST", "24 H", "JOB", "REASON", "ERROR",
        flexible=("JOB", "ERROR"), right=("COUNT", "FIRST", "LAST"),
    )  # fmt: skip
    for group in dead_groups:
        add_row(
            rows,
            group.group,
            f"{group.count:,}",
            _age(group.first_at),
            _age(group.last_at),
            sparkline(group.trend),
            cell(group.job_type),
            cell(group.reason),
            cell(error_of(group)),
        )
    return rows


def _age(moment: datetime | None) -> str:
    return "" if moment is None else age(moment.timestamp())


def error_of(group: DeadGroupView) -> str:
    """Return the error of a group in one line, and where it was raised; empty if there was none."""
    error = ": ".join(part for part in (group.error_type, group.message) if part)
    if example := _example(group.message or "", group.sample_message or ""):
        error += f", for example {example}"
    return f"{error} ({group.location})" if group.location else error


def _example(cause: str, message: str) -> str:
    """Return one letter's error message where the messages of a group vary so much that the cause
    says nothing, as with the keys of KeyErrors."""
    says_more = re.search(r"\w", re.sub(r"<[a-z]+>", "", cause))
    return "" if says_more or not cause else " ".join(message.split())[:EXAMPLE_LENGTH]


def sparkline(numbers: Sequence[int]) -> str:
    """Draw numbers as a row of bars; nothing where there is nothing."""
    most = max(numbers, default=0)
    if not most:
        return ""
    return "".join(
        " " if not number else SPARKS[min(7, (number * 8 - 1) // most)] for number in numbers
    )
