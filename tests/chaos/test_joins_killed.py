"""Workers and schedulers are killed while a thousand joined jobs run: the job that waits for them
runs once, after all of them."""

from collections import Counter
from pathlib import Path
from random import Random, randrange

import pytest

from switchyard.services.engine.publishing.preparing import THEN
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import Effects, history_of, open_chaos
from tests.support.join_run.fleet import Fleet
from tests.support.join_run.run import MIN_KILLS, run_join
from tests.support.joining import JOINING_MODULES
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]


@pytest.mark.long
async def test_a_thousand_jobs_are_joined_once_while_a_process_is_killed_every_second(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    """One of the runs of `make join-run`."""
    seed = randrange(1_000_000)
    verdict = await run_join(broker310, database_url, tmp_path, seed=seed)
    assert not verdict.faults, f"seed {seed}: {verdict.text}"
    assert sum(verdict.killed.values()) >= MIN_KILLS, verdict.text


async def test_joins_three_deep_end_once_while_workers_are_killed(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(
            broker310, sqlite_url, tmp_path, modules=JOINING_MODULES, takeover_after=0.8
        ) as system,
        Processes(system.settings, tmp_path) as processes,
        Fleet(processes, Random(1)) as fleet,
    ):
        fan_id = await system.publish("backfill.fan", {"leaves": 5, "depth": 3})
        effects = Effects(tmp_path)
        for count in (20, 60, 100):
            await effects.reach("leaf", count, timeout=60)
            await fleet.kill("worker")
        then_id = await system.stage_id(fan_id, "gather", THEN)
        record = await system.wait_for_state(then_id, State.SUCCEEDED, while_jobs_end=True)
        assert (record.result or {})["states"] == {"succeeded": 10}
        changes = await history_of(system.settings.ledger_url)
        releases = Counter(job_id for job_id, old, _ in changes if old == State.JOINING)
        # One join at the top, 5 below it, and 25 below those.
        assert sorted(releases.values()) == [1] * (1 + 5 + 25)
