"""Backfills: how fast they publish, in how much memory, and what hot work notices of them."""

from __future__ import annotations

import os
import subprocess

from benchmarks.common import end_group, environment, module_command, run_json
from benchmarks.contenders import with_switchyard
from benchmarks.measurements import Measurement, Row, collect
from benchmarks.stage import Stage

HOT_JOBS = 300


def backfill(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Jobs of 1 KB from a file, each recorded, published, confirmed and marked in the ledger."""
    rows = {
        "postgresql": Row("PostgreSQL", "jobs/s", target="at least 4,000 jobs/s"),
        "sqlite": Row("SQLite", "jobs/s"),
    }
    memory = Row("memory, at its peak", "MB", target="under 150 MB")
    file = stage.directory / "items.jsonl"
    subprocess.run(module_command("run_backfill", "write", file, count), check=True)
    for _ in range(rounds):
        for ledger, row in rows.items():
            env = environment("", **_settings(stage, ledger))
            done = run_json(module_command("run_backfill", "publish", file), env, timeout=1800)
            row.rounds.append(done["published"] / done["seconds"])
            memory.rounds.append(done["rss_mb"])
    return [*rows.values(), memory]


def backfill_hot(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Hot jobs while a backfill publishes as fast as it can: publish to start."""
    rows = [
        Row("idle, p50", "ms"),
        Row("idle, p99", "ms"),
        Row("during a backfill, p50", "ms"),
        Row("during a backfill, p99", "ms", target="within 2 × of idle"),
    ]
    file = stage.directory / "items.jsonl"
    subprocess.run(module_command("run_backfill", "write", file, count), check=True)
    for _ in range(rounds):
        latencies = stage.directory / "latencies"
        env = environment("", BENCH_LATENCIES=str(latencies), **_settings(stage, "postgresql"))
        worker = with_switchyard.worker_command(8, "hot")
        driver = module_command("run_backfill", "hot", HOT_JOBS)
        collect(rows[:2], latencies, worker, driver, env)
        publishing = subprocess.Popen(
            module_command("run_backfill", "publish", file),
            env=env,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            collect(rows[2:], latencies, worker, driver, env)
            if publishing.poll() is not None:
                raise RuntimeError("the backfill was done too early: give it a larger --count")
        finally:
            end_group(publishing)
    rows[3].ratio = rows[3].median / rows[1].median
    return rows


def _settings(stage: Stage, ledger: str) -> dict[str, str]:
    return stage.switchyard(f"backfill-{os.urandom(3).hex()}", ledger)


ALL: dict[str, tuple[Measurement, int, int]] = {
    "backfill": (backfill, 3, 60_000),
    "backfill-hot": (backfill_hot, 2, 100_000),
}
