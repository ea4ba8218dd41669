"""`jobctl limits`: use of named limits, and the jobs that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.durations import duration_text
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    print_json,
    say,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.limits import LimitReport


def limits(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only limits that jobs are waiting for.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show named limits: current use, waiting jobs, and when there is room again.

    Only limits used within the last hour, at most 1,000.
    """

    async def read(settings: Settings) -> list[LimitReport]:
        async with open_ledger(settings) as ledger:
            return await ledger.limits.limit_reports()

    reports = [each for each in run(read(load_settings())) if each.waiting or not waiting]
    if as_json:
        from switchyard.api.views.system import view_limit

        print_json([view_limit(each) for each in reports])
        return
    if not reports:
        say(
            "No job waits for a limit."
            if waiting
            else "No limit is in use. Job types declare them: docs/limits.md."
        )
        return
    rows = table(
        "LIMIT",
        "KEY",
        "RUNNING",
        "LAST MINUTE",
        "TOKENS",
        "WAITING",
        "NEXT ROOM",
        flexible=("LIMIT", "KEY"),
    )
    for each in reports:
        add_row(
            rows,
            cell(each.name),
            cell(each.key),
            _describe_use(each.in_use, each.size.concurrency),
            _describe_use(each.last_minute, each.size.per_minute),
            _describe_use(each.tokens_last_minute, each.size.tokens_per_minute),
            f"{each.waiting:,}",
            _describe_wait(each.next_room),
        )
    console().print(rows)


def _describe_use(used: int, most: int | None) -> str:
    return f"{used:,}" if most is None else f"{used:,} of {most:,}"


def _describe_wait(seconds: float | None) -> str:
    if seconds is None:
        return "when a job ends"
    return "now" if seconds <= 0 else f"in {duration_text(seconds)}"
