"""Everything that can happen to a cluster, one after the other, in the middle of 10,000 jobs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from switchyard.services.engine.records.bulk import BulkState
from tests.support.api_server import api_process
from tests.support.backfills import BackfillUser
from tests.support.chaos import (
    CHAOS_MODULES,
    Effects,
    assert_all_accounted_for,
    open_chaos,
    publish_all,
    requests_of,
)
from tests.support.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.system import System, lanes_with
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(420)]

FILED, PUBLISHED, POSTED = 5_000, 4_700, 300
SECONDS = 0.02
LONGEST_ANSWER = 5.0
"""Seconds: the two that are promised, and as much again as a busy machine needs."""


class Posting:
    """Somebody who posts a hot job every now and then, and again until it is taken."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.accepted: list[str] = []
        self.slowest = 0.0
        self.refused = 0

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60, trust_env=False) as client:
            for number in range(POSTED):
                while not await self._taken(client, number):
                    self.refused += 1
                    await asyncio.sleep(0.2)
                await asyncio.sleep(0.2)

    async def _taken(self, client: httpx.AsyncClient, number: int) -> bool:
        began = time.monotonic()
        answer = await client.post(
            "/jobs",
            json={"routing_key": "hot.effect", "payload": {"seconds": SECONDS}},
            headers={"Idempotency-Key": f"posted-{number}"},
        )
        self.slowest = max(self.slowest, time.monotonic() - began)
        if answer.status_code == 503:
            return False
        assert answer.is_success, answer.text
        self.accepted.append(answer.json()["job_id"])
        return True


async def test_no_job_is_lost_or_ends_twice_whatever_befalls_the_nodes(
    cluster: LocalCluster, postgres_url: str, tmp_path: Path
) -> None:
    one, two, three = cluster.nodes

    async def killed() -> None:
        await asyncio.to_thread(one.kill)
        await asyncio.sleep(4)
        await asyncio.to_thread(one.start)

    async def cut_off() -> None:
        await asyncio.to_thread(cluster.cut_off, two)
        await asyncio.sleep(12)
        await asyncio.to_thread(cluster.join_again, two)

    async def frozen() -> None:
        with cluster.frozen(three):
            await asyncio.sleep(12)

    async def restarted() -> None:
        for node in cluster.nodes:
            await asyncio.to_thread(node.restart)

    async def all_killed() -> None:
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in cluster.nodes))
        await asyncio.to_thread(cluster.start)

    troubles = {
        "one node killed": killed,
        "one cut off from the others": cut_off,
        "one frozen": frozen,
        "a rolling restart": restarted,
        "all nodes killed": all_killed,
    }
    effects = Effects(tmp_path)
    with cluster.vhost() as broker:
        options = {
            "lanes": lanes_with(max_length={"backfill": 100_000}),
            "confirm_timeout": 5,
        }
        async with (
            open_chaos(broker, postgres_url, tmp_path, **options) as system,
            Processes(system.settings, tmp_path) as processes,
            api_process(
                system.settings,
                tmp_path / "api.log",
                JOBS_PROFILE="quorum",
                JOBS_MANAGEMENT_URL=broker.management_url,
            ) as api,
            AsyncExitStack() as stack,
        ):
            assert system.settings.modules == CHAOS_MODULES
            await processes.start("scheduler", turn=0.2, pending=2.0)
            for _ in range(2):
                await processes.start("worker", slots=8, reserve=1)
            backfills = BackfillUser(system)
            filed = await backfills.start(
                "file",
                await backfills.store([{"seconds": SECONDS}] * FILED),
                job_type="effect",
                rate=45,
                high=50_000,
            )
            await stack.enter_async_context(backfills.running())
            published: list[str] = []
            posting = Posting(api.url)
            load = asyncio.gather(posting.run(), publish_slowly(system, published))
            await effects.reach("done", 100)
            for name, trouble in troubles.items():
                print(f"{name}: work stood still for {await pause(effects, trouble):.1f} s")
            assert not (await backfills.progress(filed)).is_over, "the load was too short"
            await load

            async def is_over() -> bool:
                return (await backfills.progress(filed)).is_over

            await eventually(is_over, timeout=120)
            assert (await backfills.progress(filed)).operation.state is BulkState.COMPLETED
            known = await all_ids(postgres_url)
            assert set(posting.accepted) | set(published) < set(known)
            assert len(known) == FILED + PUBLISHED + POSTED
            await assert_all_accounted_for(system, known, timeout=120)
            print(f"the API: {posting.refused} times 503, slowest answer {posting.slowest:.1f} s")
            assert posting.slowest < LONGEST_ANSWER


async def publish_slowly(system: System, published: list[str]) -> None:
    requests = requests_of(PUBLISHED, seconds=SECONDS)
    for start in range(0, PUBLISHED, 40):
        await publish_all(system, requests[start : start + 40], timeout=120, accepted=published)
        await asyncio.sleep(0.6)


async def pause(effects: Effects, trouble: Callable[[], Awaitable[None]]) -> float:
    """The longest time, in seconds, in which no job ended from the beginning of the trouble until
    it was over and work went on."""
    began = time.monotonic()
    await trouble()
    over = time.monotonic()

    def ends() -> list[float]:
        return sorted(each.at for each in effects.all() if each.what == "done")

    await eventually(lambda: len([at for at in ends() if at > over]) > 50, timeout=60)
    at = [began, *(each for each in ends() if each > began)]
    return max(later - earlier for earlier, later in pairwise(at))


async def all_ids(database_url: str) -> list[str]:
    engine = create_async_engine(database_url)
    async with engine.connect() as connection:
        found = (await connection.execute(text("SELECT id FROM jobs"))).scalars().all()
    await engine.dispose()
    return list(found)
