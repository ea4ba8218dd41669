"""A proxy between worker and broker cuts connections at the worst moments: no job is lost."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.broker.publish.publisher import Publisher
from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.publishing.publisher import JobPublisher
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    BOTH_QUEUE_TYPES,
    Effects,
    assert_all_accounted_for,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
)
from tests.support.tcp_proxy import DIRECTIONS, TcpProxy

pytestmark = pytest.mark.chaos

ACK = bytes.fromhex("0000000d 003c 0050")
"""Bytes of a basic.ack frame: its length and method."""
CUTS = 10
"""Cuts in each test."""


@BOTH_QUEUE_TYPES
async def test_cut_between_confirm_and_ack_runs_no_job_twice(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker.node.amqp_port) as proxy,
    ):
        proxy_url = SecretStr(proxy.url(broker.amqp_url))
        accepted = await publish_all(system, requests_of(50, "hot.effect", seconds=0.25, then=True))
        accepted += [await system.stage_id(job_id, "effect", 0) for job_id in accepted]
        cutting = asyncio.create_task(cut_before_acks(proxy))
        await system.start_worker(amqp_url=proxy_url, slots=16, wait=False)

        await asyncio.wait_for(cutting, timeout=40)
        await assert_all_accounted_for(system, accepted)
        runs = Counter(Effects(tmp_path).ids("done"))
        assert runs == Counter(accepted)


async def cut_before_acks(proxy: TcpProxy) -> None:
    """Cut CUTS times, each time at the third ack, which the broker does not receive.

    The handler has run by then, its next job is confirmed, and the ledger says `succeeded`.
    """
    for _ in range(CUTS):
        await proxy.cut_when(lambda seen: seen.count(ACK) >= 3).wait()


@pytest.mark.parametrize("seed", [1, 2])
async def test_cuts_at_any_byte_lose_no_job(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
    ):
        proxy_url = SecretStr(proxy.url(broker310.amqp_url))
        requests = [*requests_of(30, then=True), *requests_of(20, fail_attempts=1)]
        accepted = await publish_all(system, requests)
        accepted += [await system.stage_id(job_id, "effect", 0) for job_id in accepted[:30]]
        for _ in range(2):
            await system.start_worker(amqp_url=proxy_url, wait=False)
        for _ in range(CUTS):
            cut = proxy.cut_after(
                dice.randint(100, 5_000), dice.choice(DIRECTIONS), forward=dice.random() < 0.5
            )
            await asyncio.wait_for(cut.wait(), timeout=20)

        await assert_all_accounted_for(system, accepted)


async def test_publisher_that_is_cut_off_again_and_again_gets_every_job_accepted(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    dice = random.Random(4)
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
    ):
        proxy_url = SecretStr(proxy.url(broker310.amqp_url))
        settings = system.settings.model_copy(update={"amqp_url": proxy_url})
        await system.start_worker()
        async with Publisher(settings) as publisher:
            system.jobs = JobPublisher(system.registry, system.ledger, publisher)
            cutting = asyncio.create_task(cut_at_random(proxy, dice))
            accepted = await publish_all(system, requests_of(300), batch=30)
            cutting.cancel()

        assert proxy.connections > 5
        async with outbox(system):
            await assert_all_accounted_for(system, accepted)


async def cut_at_random(proxy: TcpProxy, dice: random.Random) -> None:
    while True:
        await proxy.cut_after(dice.randint(1_000, 20_000), forward=dice.random() < 0.5).wait()
