"""`jobctl usage`: how much space each part of the system takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.broker.wording import size_in_words
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
    """Show how much space is used: the ledger by table, files by kind, index, queues.

    SINCE is how old the oldest row or file is, LAST DAY what came within 24 hours. It reads the
    whole ledger file and lists all files, which takes a while where these are large.
    """
    quiet_logs()
    system_usage = run(_usage(load_settings(), as_json=as_json))
    if not as_json:
        _show(system_usage)


async def _usage(settings: Settings, *, as_json: bool) -> SystemUsage:
    from switchyard.services.engine.monitoring.usage import measure_usage

    async with open_ledger(settings) as ledger:
        system_usage = await measure_usage(settings, ledger, timeout=None)
    if as_json:
        from switchyard.api.models.service import UsageView

        print_json(UsageView.model_validate(system_usage))
    return system_usage


def _show(system_usage: SystemUsage) -> None:
    rows = table(
        "WHAT", "NUMBER", "SIZE", "SINCE", "LAST DAY", right=("NUMBER", "SIZE", "SINCE", "LAST DAY")
    )
    if system_usage.ledger is not None:
        free = system_usage.ledger.free_bytes
        add_row(rows, "ledger", "", size_in_words(system_usage.ledger.bytes), "", "")
        if free:
            add_row(rows, "  free, to be used again", "", size_in_words(free), "", "")
        for each in system_usage.ledger.tables:
            if each.rows:
                lately = each.rows_of_last_day
                add_row(
                    rows,
                    cell(f"  {each.name}"),
                    f"{each.rows:,}",
                    "?" if each.bytes is None else size_in_words(each.bytes),
                    "" if each.since is None else age(each.since),
                    "" if lately is None else f"{lately:,}",
                )
    if system_usage.files is not None:
        number = sum(each.files for each in system_usage.files)
        file_bytes = sum(each.bytes for each in system_usage.files)
        add_row(rows, "files", f"{number:,}", size_in_words(file_bytes), "", "")
        for kind in system_usage.files:
            add_row(
                rows,
                cell(f"  {kind.kind}"),
                f"{kind.files:,}",
                size_in_words(kind.bytes),
                "" if kind.since is None else age(kind.since),
                size_in_words(kind.bytes_of_last_day),
            )
    if system_usage.index_bytes is not None:
        add_row(rows, "index", "", size_in_words(system_usage.index_bytes), "", "")
    if system_usage.queues is not None:
        filled = [each for each in system_usage.queues if each.messages]
        messages, total = sum(each.messages for each in filled), sum(each.bytes for each in filled)
        add_row(rows, "queues", f"{messages:,}", size_in_words(total), "", "")
        for queue in filled[:_SHOWN_QUEUES]:
            size = size_in_words(queue.bytes)
            add_row(rows, cell(f"  {queue.name}"), f"{queue.messages:,}", size, "", "")
    console().print(rows)
    for part, why in system_usage.missing.items():
        echo(f"{part}: not measured: {why}", err=True)
    say("`jobctl prune --dry-run` counts what is old enough to be removed.")
