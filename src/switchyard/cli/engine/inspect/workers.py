"""`jobctl workers`: which workers run, and which have stopped sending heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import size_in_words
from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.durations import age, duration_text
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    print_json,
    say,
    styled,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.results import UnknownTypeReport, WorkerRecord


def workers(
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also show workers that have stopped, or been silent for a day."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List workers: alive, silent (no heartbeat: dead, or without the ledger), or stopped."""
    from switchyard.api.views.system import view_workers
    from switchyard.services.engine.monitoring.worker_status import is_current, is_stopping

    settings = load_settings()

    async def read(settings: Settings) -> tuple[list[WorkerRecord], list[UnknownTypeReport], float]:
        async with open_ledger(settings) as ledger:
            records = await ledger.workers.list_workers()
            unknown_types = await ledger.workers.find_unknown_types()
            return records, unknown_types, ledger.clock.time()

    worker_list, unknown_types, now = run(read(settings))
    shown = [worker for worker in worker_list if everything or is_current(worker, now)]
    views = view_workers(shown, unknown_types, takeover_after=settings.takeover_after, now=now)
    if as_json:
        print_json(views)
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
        "MEMORY",
        "BEAT",
        "UP",
        flexible=("WORKER", "KINDS", "LANES"),
    )
    for worker, view in zip(shown, views, strict=True):
        add_row(
            rows,
            cell(worker.worker_id),
            styled(view.status) + (" (stopping)" if is_stopping(worker) else ""),
            cell(",".join(worker.kinds)),
            cell(",".join(worker.lanes)),
            str(worker.concurrency),
            "" if worker.memory_bytes is None else size_in_words(worker.memory_bytes),
            age(worker.beat_at),
            # Up to its last heartbeat: a worker that has stopped is no longer up.
            duration_text(max(0, round(worker.beat_at - worker.started_at))),
        )
    console().print(rows)
    for view in views:
        if view.unknown_types:
            types = ", ".join(view.unknown_types)
            say(
                f"{view.worker_id} gets jobs of types that it does not know: {types}; "
                "start it with their modules in JOBS_MODULES"
            )
