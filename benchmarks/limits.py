"""Named limits: what jobs without any notice of those that wait for theirs.

Only jobs without limits are counted; with every tenth or second of these comes a limited one, and
all but ten of those a second are put off. The ratio is to what the same worker does without them.
If putting off cost as much as running a job without a limit, the ratios would be 10/11 = 0.91 and
2/3 = 0.67; at the target of 0.5 it costs as much as ten jobs beside a tenth as many, and as two
beside half as many.
"""

from __future__ import annotations

from benchmarks.common import drained_rate, environment, module_command, run_json
from benchmarks.contenders.with_switchyard import worker_command
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage

MODULE = "benchmarks.contenders.limited"
SLOTS = 50
SHARES = ((0, "alone"), (10, "a tenth as many limited"), (2, "half as many limited"))


def limits(stage: Stage, rounds: int, count: int) -> list[Row]:
    """No-ops without limits, beside jobs of an account that runs one at a time."""
    rows = {
        (ledger, every): Row(f"{ledger}, {what}", "jobs/s")
        for ledger in ("sqlite", "postgresql")
        for every, what in SHARES
    }
    for _ in range(rounds):
        for (ledger, every), row in rows.items():
            settings = stage.switchyard("limits", ledger, modules=(MODULE,))
            env = environment("", stage.directory / "samples", **settings, JOBS_MODULES=MODULE)
            run_json(module_command("limited", "publish", count, every), env)
            row.rounds.append(drained_rate(worker_command(SLOTS, "backfill"), env, count))
    for (ledger, every), row in rows.items():
        if every:
            row.ratio = row.median / rows[ledger, 0].median
            row.target = "at least 0.5 ×"
    return list(rows.values())


ALL: dict[str, tuple[Measurement, int, int]] = {"limits": (limits, 3, 10_000)}
