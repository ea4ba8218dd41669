"""Workers that are killed: their jobs go to others, and nobody is blamed for long."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    Pool,
    assert_all_accounted_for,
    ids_of,
    open_chaos,
    publish_all,
    requests_of,
)
from tests.support.eventually import eventually
from tests.support.worker_process import Process, Processes

pytestmark = pytest.mark.chaos


async def test_jobs_of_a_killed_worker_are_resumed_and_none_of_200_is_missing(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, database_url, tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        victim, survivor = await asyncio.gather(
            processes.start("worker"), processes.start("worker")
        )
        accepted = await publish_all(system, requests_of(200, seconds=0.05))
        await effects.reach("done", 60)
        orphans = await kill_in_the_middle(victim, effects)
        killed_at = time.monotonic()

        await assert_all_accounted_for(system, accepted)
        resumed = {
            effect.job_id: effect.at - killed_at
            for effect in effects.all()
            if effect.worker_id == survivor.worker_id and effect.job_id in orphans
        }
        assert set(resumed) == orphans
        assert max(resumed.values()) < system.settings.takeover_after + 2.5


async def kill_in_the_middle(victim: Process, effects: Effects) -> set[str]:
    """Kill a worker at a moment when jobs run in it; their ids."""

    async def caught() -> set[str]:
        victim.pause()
        under_way = effects.under_way(victim.worker_id)
        if not under_way:
            victim.resume()
        return under_way

    orphans: set[str] = await eventually(caught)
    victim.kill()
    await victim.ended()
    return orphans


async def test_poison_job_is_dead_after_two_kills_and_the_pool_lives_on(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, takeover_after=0.8) as system,
        Processes(system.settings, tmp_path) as processes,
        Pool(processes, 2, slots=6) as pool,
    ):
        requests = requests_of(60, seconds=0.2)
        poison = requests_of(1, "backfill.poison", seconds=0.1)
        accepted = await publish_all(system, [*requests[:10], *poison, *requests[10:]])

        await assert_all_accounted_for(system, accepted, dead=ids_of(poison))
        record = await system.record(ids_of(poison)[0])
        assert (record.reason, record.crashes) == ("crashed", 2)
        assert pool.deaths == [-9, -9]
        assert [line.outcome for line in record.timeline] == ["crashed", "crashed", "dead"]
