"""A cluster of three nodes of which one dies: clients go on with the others."""

import asyncio
from pathlib import Path

import pytest

from tests.support.chaos import (
    Effects,
    assert_all_accounted_for,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
)
from tests.support.cluster import LocalCluster
from tests.support.eventually import eventually


@pytest.mark.long  # three nodes start, and two of them twice
async def test_each_node_may_die_in_turn_and_every_job_ends(
    cluster: LocalCluster, sqlite_url: str, tmp_path: Path
) -> None:
    with cluster.vhost() as broker:
        async with open_chaos(broker, sqlite_url, tmp_path) as system:
            effects = Effects(tmp_path)
            await system.start_worker(slots=8)
            accepted: list[str] = []
            # One of the two is where the publisher and the worker are, or the queue's leader.
            for node in cluster.nodes[1:]:
                publishing = asyncio.create_task(
                    publish_all(system, requests_of(100), batch=20, accepted=accepted)
                )
                await wait_until_longer(accepted, len(accepted) + 20)
                await asyncio.to_thread(node.kill)
                await publishing
                await asyncio.to_thread(node.start)
            await effects.reach("done", 1)
            async with outbox(system):
                await assert_all_accounted_for(system, accepted)


async def wait_until_longer(accepted: list[str], length: int) -> None:
    await eventually(lambda: len(accepted) > length)
