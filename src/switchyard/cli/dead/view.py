"""A redrive on the terminal: shown, or watched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.bulk_records import record_of
from switchyard.cli.base.output import (
    cell,
    console,
    plain,
    print_json_line,
    print_rows,
    say,
    styled,
)

if TYPE_CHECKING:
    from switchyard.services.ledger import Ledger
    from switchyard.services.records import BulkOperation

WATCH_SECONDS = 1.0


def public(operation: BulkOperation) -> dict[str, Any]:
    """A redrive as `--json` prints it."""
    from switchyard.services.redrive.spec import Progress

    shown: dict[str, Any] = plain(
        {
            **record_of(operation),
            "rate": operation.rate,
            **Progress.of(operation).to_json(),
        }
    )
    return shown


def print_redrive(operation: BulkOperation) -> None:
    """All that is known of it."""
    import json

    from switchyard.cli.base.durations import age
    from switchyard.services.redrive.spec import Progress

    progress = Progress.of(operation)
    total = f" of {progress.total:,}" if progress.total is not None else ""
    print_rows(
        [
            ("id", operation.id),
            ("what", operation.title),
            ("state", str(operation.state)),
            ("note", operation.note or ""),
            ("why", operation.reason or ""),
            ("started by", f"{operation.created_by}, {age(operation.created_at)} ago"),
            ("rate", f"{operation.rate:g}/s" if operation.rate else ""),
            ("redriven", f"{progress.redriven:,}{total}"),
            ("succeeded", f"{progress.succeeded:,}"),
            ("failed again", f"{progress.failed:,}" if progress.failed else ""),
            ("not at their end", f"{progress.unfinished:,}" if progress.unfinished else ""),
            ("undone", f"{progress.undone:,}" if progress.undone else ""),
            ("dropped", f"{progress.dropped:,}" if progress.dropped else ""),
            ("not valid", f"{progress.invalid:,}" if progress.invalid else ""),
            ("spec", json.dumps(dict(operation.spec), ensure_ascii=False)),
        ]
    )
    for note in progress.notes:
        say(note)


async def watch_redrive(ledger: Ledger, operation_id: str, *, as_json: bool) -> BulkOperation:
    """Show a redrive until it stops; its record then."""
    from switchyard.services.bulk.control import require_bulk
    from switchyard.services.records import ACTIVE
    from switchyard.services.redrive.spec import KIND, settled

    last = ""
    while True:
        operation = await settled(ledger, await require_bulk(ledger, operation_id, KIND))
        line = one_line(operation)
        if as_json:
            print_json_line(public(operation))
        elif line != last:
            console(stderr=True).print(line)
        last = line
        if operation.state not in ACTIVE:
            return operation
        await asyncio.sleep(WATCH_SECONDS)


def one_line(operation: BulkOperation) -> str:
    """How far it is."""
    counts = operation.counts
    parts = [f"{styled(operation.state)} {counts.get('redriven', 0):,} redriven"]
    names = ("succeeded", "failed", "unfinished")
    parts += [f"{counts[name]:,} {name}" for name in names if counts.get(name)]
    if operation.note:
        parts.append(cell(operation.note))
    return " · ".join(parts)
