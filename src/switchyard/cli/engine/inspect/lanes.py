"""`jobctl lanes`: depth of the lanes' queues, and their consumers."""

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
from switchyard.cli.base.durations import duration_text
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    console,
    echo,
    print_json,
    print_json_line,
    say,
    styled,
    table,
)
from switchyard.cli.engine.jobs.filter import StateName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.table import Table

    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.monitoring.lane_report import (
        LaneReport,
        LanesReport,
        QueueReport,
    )

WATCH_INTERVAL = 1.0
FULL, FILLING = 90.0, 50.0
"""Per cent of a queue's limit from which it is shown in red, and in yellow."""


def lanes(
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every second until Ctrl-C.")
    ] = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the queues of each lane with their depths and limits, and jobs by state.

    READY: jobs waiting; UNACKED: jobs held by workers; CONS: consumers; LIMIT: number of
    waiting jobs at which more are refused.
    """
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    run(_show_lanes(settings, load_registry(settings, include), watch=watch, as_json=as_json))


async def _show_lanes(
    settings: Settings, registry: Registry, *, watch: bool, as_json: bool
) -> None:
    from rich.live import Live

    async with open_ledger(settings, registry) as ledger:
        reports = _reports(settings, registry, ledger, watch=watch)
        if as_json:
            await _print_json(settings, registry, ledger, reports, watch=watch)
            return
        screen = console()
        if not (watch and screen.is_terminal):
            async for report in reports:
                screen.print(lanes_table(report))
                if watch:
                    echo()
            return
        with Live(console=screen, auto_refresh=False) as live:
            async for report in reports:
                live.update(lanes_table(report), refresh=True)


async def _reports(
    settings: Settings, registry: Registry, ledger: Ledger, *, watch: bool
) -> AsyncIterator[LanesReport]:
    """Yield the lanes' report once, or again every WATCH_INTERVAL."""
    import asyncio

    from switchyard.services.engine.monitoring.lane_report import make_lane_report

    report = await make_lane_report(settings, registry, ledger, clock=ledger.clock.time)
    if report.management_error:
        say(f"unacknowledged, age and limits in force are not known: {report.management_error}")
    yield report
    while watch:
        await asyncio.sleep(WATCH_INTERVAL)
        yield await make_lane_report(settings, registry, ledger, clock=ledger.clock.time)


async def _print_json(
    settings: Settings,
    registry: Registry,
    ledger: Ledger,
    reports: AsyncIterator[LanesReport],
    *,
    watch: bool,
) -> None:
    from switchyard.api.views.system import view_lane_reports
    from switchyard.services.engine.monitoring.lane_pressure import LanePressure

    show = print_json_line if watch else print_json
    async with LanePressure(settings, registry, ledger=ledger) as pressure:
        async for report in reports:
            show(view_lane_reports(report, await pressure.snapshot()))


def lanes_table(report: LanesReport) -> Table:
    """Draw the report for a terminal: the broker's queues, and below them the ledger's jobs."""
    from rich.table import Table

    rows = table(
        "QUEUE",
        "READY",
        "UNACKED",
        "CONS",
        "LIMIT",
        "FULL",
        "OLDEST/TTL",
        flexible=("QUEUE",),
        right=("READY", "UNACKED", "CONS", "LIMIT", "FULL"),
    )
    for lane in report.lanes:
        for queue in lane.queues:
            add_row(rows, *_queue_cells(queue))
    picture = Table.grid()
    picture.add_row(rows)
    jobs = [
        f"[bold]{lane.name}[/]: {text}" for lane in report.lanes if (text := _describe_jobs(lane))
    ]
    if jobs:
        picture.add_row("")
        picture.add_row("Jobs in the ledger")
    for line in jobs:
        picture.add_row(line)
    return picture


def _queue_cells(queue: QueueReport) -> tuple[str, ...]:
    if not queue.exists:
        return queue.name, "[red]missing[/]", "", "", "", "", ""
    percent = queue.percent_full
    style = "" if percent is None else "red" if percent >= FULL else "yellow"
    full = "" if percent is None else f"{percent:.0f}%"
    # Without a limit are the dead letters, which need no consumer.
    is_unserved = queue.ready and not queue.consumers and queue.limit is not None
    return (
        queue.name,
        f"{queue.ready:,}",
        "–" if queue.unacked is None else f"{queue.unacked:,}",
        f"[red]{queue.consumers}[/]" if is_unserved else str(queue.consumers),
        "" if queue.limit is None else f"{queue.limit:,}",
        f"[{style}]{full}[/]" if percent is not None and percent >= FILLING else full,
        _age(queue),
    )


def _age(queue: QueueReport) -> str:
    """Write the age of a queue's oldest job and the lane's TTL, as far as they are known."""
    ages = (queue.oldest_seconds if queue.ready else None, queue.ttl_seconds)
    return "/".join(duration_text(each, units=1) for each in ages if each is not None)


def _describe_jobs(lane: LaneReport) -> str:
    parts = [f"{lane.jobs[state]:,} {styled(state)}" for state in StateName if lane.jobs.get(state)]
    return " ".join(parts)
