"""Fairness by source: what the few jobs of one source wait beside the many of another."""

from __future__ import annotations

import subprocess

from benchmarks.common import end_group, environment, module_command, run_json
from benchmarks.contenders.with_switchyard import worker_command
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage

MODULE = "benchmarks.contenders.fair_sources"
SLOTS = 20
FEW = 100
FAIR_FROM = 500
"""As JOBS_FAIR_FROM is where nobody sets it."""


def fairness(stage: Stage, rounds: int, count: int) -> list[Row]:
    """100 jobs of a source that come when another's fill the queue, and go on doing so."""
    rows = {
        FAIR_FROM: Row("100 beside many, the last one's wait", "s", target="seconds"),
        0: Row("the same, all sources alike", "s"),
    }
    for _ in range(rounds):
        for fair_from, row in rows.items():
            settings = stage.switchyard("fairness", "sqlite", modules=(MODULE,))
            env = environment("", stage.directory / "samples", **settings, JOBS_MODULES=MODULE)
            worker = subprocess.Popen(
                worker_command(SLOTS, "backfill"), env=dict(env), start_new_session=True
            )
            try:
                command = module_command("fair_sources", "run", count, FEW, fair_from)
                row.rounds.append(max(run_json(command, env)["waits"]))
            finally:
                end_group(worker)
    rows[FAIR_FROM].ratio = rows[FAIR_FROM].median / rows[0].median
    return list(rows.values())


ALL: dict[str, tuple[Measurement, int, int]] = {"fairness": (fairness, 1, 100_000)}
