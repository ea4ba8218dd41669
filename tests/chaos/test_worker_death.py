"""Jobs of killed workers are resumed by others, and only jobs that kill workers become dead."""

import asyncio
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    Pool,
    assert_all_accounted_for,
    ids_of,
    open_chaos,
    publish_all,
    requests_of,
    write,
)
from tests.support.eventually import eventually
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Process, Processes

pytestmark = pytest.mark.chaos

SUSPECTS_START_TIME = 45.0
"""Seconds in which a busy machine starts a process for each suspect, also for those that come back
through a retry level; an idle one takes one or two. Without a takeover, nobody resumes their jobs
before the scheduler does so after a minute."""
PUBLISH = bytes.fromhex("003c 0028 0000 0a") + b"jobs.topic"
"""Bytes of a basic.publish frame of a job: its method and exchange."""
ACK = bytes.fromhex("0000000d 003c 0050")
"""Bytes of a basic.ack frame: its length and method."""


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
        orphans = await kill_while_jobs_run(victim, effects)
        killed_at = time.monotonic()

        await assert_all_accounted_for(system, accepted)
        resumed = {
            effect.job_id: effect.at - killed_at
            for effect in effects.all()
            if effect.worker_id == survivor.worker_id and effect.job_id in orphans
        }
        assert set(resumed) == orphans
        assert max(resumed.values()) < system.settings.takeover_after + SUSPECTS_START_TIME


async def kill_while_jobs_run(victim: Process, effects: Effects) -> set[str]:
    """Kill a worker at a moment when jobs run in it; return their ids."""

    async def pause_while_jobs_run() -> set[str]:
        victim.pause()
        under_way = effects.under_way(victim.worker_id)
        if not under_way:
            victim.resume()
        return under_way

    orphans: set[str] = await eventually(pause_while_jobs_run)
    victim.kill()
    await victim.ended()
    return orphans


async def test_four_harmless_jobs_survive_the_deaths_of_three_workers(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """Jobs that ran at each death did not kill the workers: they must not become dead for it."""
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, takeover_after=0.8) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        accepted = await publish_all(system, requests_of(4, "hot.effect", until="go"))
        for _ in range(3):
            victim = await processes.start("worker", slots=8)
            await wait_until_all_run(effects, victim, accepted)
            victim.kill()
            await victim.ended()
        write(tmp_path, "go")
        await processes.start("worker", slots=8)
        await assert_all_accounted_for(system, accepted)
        assert [(await system.record(job_id)).crashes for job_id in accepted] == [3] * 4


async def wait_until_all_run(effects: Effects, worker: Process, job_ids: list[str]) -> None:
    await eventually(lambda: effects.under_way(worker.worker_id) == set(job_ids))


async def test_hot_job_starts_at_once_beside_suspects_that_run(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, takeover_after=0.8) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        suspects = await publish_all(system, requests_of(3, until="go"))
        for kill in (True, False):
            worker = await processes.start("worker", slots=8)
            await wait_until_all_run(effects, worker, suspects)
            if kill:
                worker.kill()
                await worker.ended()
        began = time.monotonic()
        hot_ids = await publish_all(system, requests_of(1, "hot.effect"))
        await system.wait_until_all(hot_ids, State.SUCCEEDED)
        assert time.monotonic() - began < 6  # the suspects still run
        write(tmp_path, "go")
        await assert_all_accounted_for(system, [*suspects, *hot_ids])


async def test_poison_job_is_dead_after_two_kills_and_the_pool_lives_on(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path, takeover_after=0.8) as system,
        Processes(system.settings, tmp_path) as processes,
        Pool(processes, 2, slots=6) as pool,
    ):
        requests = requests_of(40, seconds=0.2)
        poison = requests_of(1, "backfill.poison", seconds=0.1)
        accepted = await publish_all(system, [*requests[:10], *poison, *requests[10:]])

        await assert_all_accounted_for(system, accepted, dead=ids_of(poison))
        record = await system.record(ids_of(poison)[0])
        assert (record.reason, record.crashes) == ("crashed", 1)
        # The second time it ran in a process of its own, and killed that.
        assert pool.deaths == [-9]
        assert [line.outcome for line in record.timeline] == ["crashed", "dead"]


@pytest.mark.parametrize("forward", [False, True], ids=["unseen-by-the-broker", "seen"])
@pytest.mark.parametrize("frame", [PUBLISH, ACK], ids=["publish", "ack"])
async def test_worker_killed_at_its_first_publish_or_ack_loses_no_job(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, frame: bytes, forward: bool
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
        Processes(system.settings, tmp_path) as processes,
    ):
        through_proxy = {"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
        victim = await processes.start("worker", settings=through_proxy)
        proxy.cut_when(partial(kill_at_frame, victim, frame), forward=forward)
        accepted = await publish_all(system, requests_of(6, then=True))
        assert await victim.ended() == -signal.SIGKILL

        await processes.start("worker")
        accepted += [await system.stage_id(job_id, "effect", 0) for job_id in accepted]
        await assert_all_accounted_for(system, accepted)


def kill_at_frame(victim: Process, frame: bytes, sent: bytes) -> bool:
    """Kill the process when it sends such a frame; return whether it did."""
    if frame not in sent:
        return False
    victim.kill()
    return True
