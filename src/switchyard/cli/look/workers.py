"""`jobctl workers`: who works, and who has fallen silent."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.durations import age
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    console,
    plain,
    print_json,
    say,
    styled,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.records import WorkerRecord
    from switchyard.services.settings import Settings

SILENT_AFTER = 2.0
"""Times `JOBS_TAKEOVER_AFTER` without a beat, after which a worker is shown as silent."""
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a silent worker is no news any more; `--all` still shows it."""


def workers(
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that have stopped, or been silent for a day.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List workers: alive, silent (no beat: it died, or lost the ledger), or stopped."""
    settings = load_settings()

    async def read(settings: Settings) -> list[WorkerRecord]:
        async with open_ledger(settings) as ledger:
            return await ledger.list_workers()

    now = time.time()
    found = run(read(settings))
    shown = [
        (status_of(worker, settings, now), worker)
        for worker in found
        if everything or is_current(worker, now)
    ]
    if as_json:
        print_json([{"status": status, **plain(worker)} for status, worker in shown])
        return
    if not shown:
        say("No workers: start one with `jobctl worker all`.")
        return
    rows = table(
        "WORKER",
        "STATUS",
        "KINDS",
        "LANES",
        "SLOTS",
        "BEAT",
        "UP",
        flexible=("WORKER", "KINDS", "LANES"),
    )
    for status, worker in shown:
        add_row(
            rows,
            worker.worker_id,
            styled(status),
            ",".join(worker.kinds),
            ",".join(worker.lanes),
            str(worker.concurrency),
            age(worker.beat_at),
            age(worker.started_at),
        )
    console().print(rows)


def status_of(worker: WorkerRecord, settings: Settings, now: float) -> str:
    """`alive`, `silent` or `stopped`, as far as two clocks agree."""
    if worker.stopped_at is not None:
        return "stopped"
    silent = now - worker.beat_at > SILENT_AFTER * settings.takeover_after
    return "silent" if silent else "alive"


def is_current(worker: WorkerRecord, now: float) -> bool:
    """Whether somebody who looks at the system now wants to see it."""
    return worker.stopped_at is None and now - worker.beat_at < FORGOTTEN_AFTER
