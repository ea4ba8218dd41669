"""Dead letters: how fast they are read, grouped and sent back, and what hot work notices."""

from __future__ import annotations

from benchmarks.bulk import HOT_JOBS, hot_rows, meanwhile
from benchmarks.common import environment, module_command, run_json
from benchmarks.contenders import with_switchyard
from benchmarks.measurements import Measurement, Row, collect
from benchmarks.stage import Stage

LEDGERS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


def scan(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Dead letters of 20 causes with 1 KB of payload, gone through on the broker and grouped."""
    scanned = Row("through jobs.dead", "s", target="under 30 s for 100,000")
    groups = {
        ledger: Row(f"groups, {name}", "s", target="under 2 s for 100,000")
        for ledger, name in LEDGERS.items()
    }
    indexed = {ledger: Row(f"indexed, {name}", "letters/s") for ledger, name in LEDGERS.items()}
    for ledger, row in groups.items():
        env = _buried(stage, ledger, count, indexed[ledger])
        for _ in range(rounds):
            done = run_json(module_command("run_redrive", "scan"), env)
            scanned.rounds.append(done["scan"])
            row.rounds.append(done["groups"])
    return [scanned, *groups.values(), *indexed.values()]


def redrive(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Dead letters sent back unthrottled: each published, confirmed, recorded, acknowledged."""
    rows = {
        ledger: Row(f"all of them, {name}", "letters/s", target="at least 3,000/s")
        for ledger, name in LEDGERS.items()
    }
    one = Row("one cause of 20, SQLite", "letters/s", target="at least 1,000/s")
    removed = Row("its letters taken out of the queue later", "s")
    for _ in range(rounds):
        for ledger, row in rows.items():
            env = _buried(stage, ledger, count)
            if ledger == "sqlite":
                done = run_json(module_command("run_redrive", "group"), env)
                one.rounds.append(done["redriven"] / done["seconds"])
                done = run_json(module_command("run_redrive", "remove"), env)
                removed.rounds.append(done["seconds"])
            done = run_json(module_command("run_redrive", "redrive"), env)
            row.rounds.append(done["redriven"] / done["seconds"])
    return [*rows.values(), one, removed]


def redrive_hot(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Hot jobs while a redrive sends as fast as it may: publish to start."""
    rows = hot_rows("redrive")
    for _ in range(rounds):
        latencies = stage.directory / "latencies"
        env = {**_buried(stage, "postgresql", count), "BENCH_LATENCIES": str(latencies)}
        worker = with_switchyard.worker_command(8, "hot")
        driver = module_command("run_backfill", "hot", HOT_JOBS)
        collect(rows[:2], latencies, worker, driver, env)
        meanwhile(rows[2:], module_command("run_redrive", "redrive"), env, worker, driver)
    rows[3].ratio = rows[3].median / rows[1].median
    return rows


def _buried(stage: Stage, ledger: str, count: int, indexed: Row | None = None) -> dict[str, str]:
    env = environment("", **stage.switchyard("redrive", ledger))
    done = run_json(module_command("run_redrive", "bury", count), env, timeout=1800)
    if indexed is not None:
        indexed.rounds.append(done["indexed"] / done["seconds"])
    return env


ALL: dict[str, tuple[Measurement, int, int]] = {
    "scan": (scan, 2, 100_000),
    "redrive": (redrive, 2, 30_000),
    "redrive-hot": (redrive_hot, 2, 100_000),
}
