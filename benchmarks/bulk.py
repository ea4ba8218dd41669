"""Backfills: how fast they publish, in how much memory, and what hot work notices of them."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

from benchmarks.common import end_group, environment, module_command, run_json
from benchmarks.contenders import with_switchyard
from benchmarks.measurements import Measurement, Row, collect
from benchmarks.stage import Stage
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.states import State

HOT_JOBS = 1_500


def backfill(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Jobs of 1 KB from a file, each recorded, published, confirmed and marked in the ledger."""
    rates = {
        "postgresql": Row("PostgreSQL", "jobs/s", target="at least 4,000 jobs/s"),
        "sqlite": Row("SQLite", "jobs/s"),
    }
    peaks = {
        ledger: Row(f"{rate.name}: memory at its peak", "MB", target="under 150 MB")
        for ledger, rate in rates.items()
    }
    file = stage.directory / "items.jsonl"
    subprocess.run(module_command("run_backfill", "write", file, count), check=True)
    for _ in range(rounds):
        for ledger, rate in rates.items():
            env = environment("", **stage.switchyard("backfill", ledger))
            done = run_json(module_command("run_backfill", "publish", file), env, timeout=1800)
            rate.rounds.append(done["published"] / done["seconds"])
            peaks[ledger].rounds.append(done["rss_mb"])
    return [*rates.values(), *peaks.values()]


def backfill_hot(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Hot jobs while a backfill publishes as fast as it may: publish to start."""
    rows = hot_rows("backfill")
    file = stage.directory / "items.jsonl"
    subprocess.run(module_command("run_backfill", "write", file, count), check=True)
    for _ in range(rounds):
        latencies = stage.directory / "latencies"
        own = stage.switchyard("backfill", "postgresql")
        env = environment("", BENCH_LATENCIES=str(latencies), **own)
        worker = with_switchyard.worker_command(8, "hot")
        driver = module_command("run_backfill", "hot", HOT_JOBS)
        collect(rows[:2], latencies, worker, driver, env)
        meanwhile(rows[2:], module_command("run_backfill", "publish", file), env, worker, driver)
    rows[3].ratio = rows[3].median / rows[1].median
    return rows


def hot_rows(what: str) -> list[Row]:
    """The rows of hot jobs without and with bulk work."""
    return [
        Row("idle, p50", "ms"),
        Row("idle, p99", "ms"),
        Row(f"during a {what}, p50", "ms"),
        Row(f"during a {what}, p99", "ms", target="within 2 × of idle"),
        Row(f"the {what} meanwhile", "jobs/s"),
    ]


def meanwhile(
    rows: list[Row], bulk: list[str], env: dict[str, str], worker: list[str], driver: list[str]
) -> None:
    """Publish hot jobs while a command does bulk work, which must not end before."""
    latencies = Path(env["BENCH_LATENCIES"])
    began, before = time.monotonic(), _queued(env)
    running = subprocess.Popen(bulk, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        collect(rows[:2], latencies, worker, driver, env)
        if running.poll() is not None:
            raise RuntimeError("the bulk work was done too early: give it a larger --count")
        rows[2].rounds.append((_queued(env) - before) / (time.monotonic() - began))
    finally:
        end_group(running)


def _queued(env: dict[str, str]) -> int:
    async def count() -> int:
        async with await Ledger.open(env["JOBS_DATABASE_URL"]) as ledger:
            return (await ledger.job_reads.counts()).get("backfill", {}).get(State.QUEUED, 0)

    return asyncio.run(count())


ALL: dict[str, tuple[Measurement, int, int]] = {
    "backfill": (backfill, 3, 60_000),
    "backfill-hot": (backfill_hot, 2, 100_000),
}
