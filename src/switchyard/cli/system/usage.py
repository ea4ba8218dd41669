"""`jobctl usage`: what takes how much room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.durations import age
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.usage import SystemUsage

_SHOWN_QUEUES = 10


def usage(as_json: JsonOption = False) -> None:
    """Show what takes how much room: the ledger by table, files by kind, index, queues.

    SINCE is how old the oldest row or file is, LAST DAY what came within 24 hours. It reads the
    whole ledger file and lists all files, which takes a while where these are large.
    """
    quiet_logs()
    found = run(_usage(load_settings(), as_json=as_json))
    if not as_json:
        _show(found)


async def _usage(settings: Settings, *, as_json: bool) -> SystemUsage:
    from switchyard.services.engine.monitoring.usage import measure_usage

    async with open_ledger(settings) as ledger:
        found = await measure_usage(settings, ledger, timeout=None)
    if as_json:
        from switchyard.api.models.service import UsageView

        print_json(UsageView.model_validate(found))
    return found


def _show(found: SystemUsage) -> None:
    rows = table(
        "WHAT", "NUMBER", "SIZE", "SINCE", "LAST DAY", right=("NUMBER", "SIZE", "SINCE", "LAST DAY")
    )
    if found.ledger is not None:
        free = found.ledger.free_bytes
        add_row(rows, "ledger", "", _size(found.ledger.bytes), "", "")
        if free:
            add_row(rows, "  free, to be used again", "", _size(free), "", "")
        for each in found.ledger.tables:
            if each.rows:
                lately = each.rows_of_last_day
                add_row(
                    rows,
                    cell(f"  {each.name}"),
                    f"{each.rows:,}",
                    "?" if each.bytes is None else _size(each.bytes),
                    "" if each.since is None else age(each.since),
                    "" if lately is None else f"{lately:,}",
                )
    if found.files is not None:
        number, size = sum(each.files for each in found.files), sum(e.bytes for e in found.files)
        add_row(rows, "files", f"{number:,}", _size(size), "", "")
        for kind in found.files:
            add_row(
                rows,
                cell(f"  {kind.kind}"),
                f"{kind.files:,}",
                _size(kind.bytes),
                "" if kind.since is None else age(kind.since),
                _size(kind.bytes_of_last_day),
            )
    if found.index_bytes is not None:
        add_row(rows, "index", "", _size(found.index_bytes), "", "")
    if found.queues is not None:
        full = [each for each in found.queues if each.messages]
        number, size = sum(each.messages for each in full), sum(each.bytes for each in full)
        add_row(rows, "queues", f"{number:,}", _size(size), "", "")
        for queue in full[:_SHOWN_QUEUES]:
            add_row(
                rows, cell(f"  {queue.name}"), f"{queue.messages:,}", _size(queue.bytes), "", ""
            )
    console().print(rows)
    for part, why in found.missing.items():
        echo(f"{part}: not measured: {why}", err=True)
    say("`jobctl prune --dry-run` counts what is old enough to be removed.")


def _size(number: int) -> str:
    """Write bytes with a unit: `0 B`, `12.3 KiB`, `4.5 GiB`."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.0f} {units[0]}" if units[0] == "B" else f"{value:,.1f} {units[0]}"
