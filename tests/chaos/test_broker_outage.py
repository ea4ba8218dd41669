"""The broker is killed or has an alarm: every job that it has confirmed runs afterwards."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.broker.errors import Blocked, BrokerUnavailable
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    assert_all_accounted_for,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
    write,
)
from tests.support.eventually import eventually
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.long]


async def test_broker_killed_in_the_middle_of_2000_jobs_loses_none(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> None:
    node = await asyncio.to_thread(own_node)
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_chaos(broker, sqlite_url, tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        await asyncio.gather(*(processes.start("worker", slots=8) for _ in range(2)))
        requests = [*requests_of(1_900, seconds=0.002), *requests_of(100, fail_attempts=1)]
        accepted: list[str] = []
        publishing = asyncio.create_task(
            publish_all(system, requests, batch=50, timeout=100, accepted=accepted)
        )
        await eventually(lambda: len(accepted) >= 700 and effects.ids("done"))
        assert not publishing.done()

        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)

        await publishing
        assert len(accepted) == 2_000
        async with outbox(system):
            await assert_all_accounted_for(system, accepted)


async def test_alarm_blocks_publishers_and_running_jobs_end_when_it_is_over(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> None:
    node = await asyncio.to_thread(own_node)
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_chaos(broker, sqlite_url, tmp_path, confirm_timeout=1) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        await processes.start("worker", slots=8, reserve=0)
        accepted = await publish_all(
            system,
            [
                *requests_of(2, until="alarm"),
                *requests_of(2, until="alarm", fail_attempts=1),
                *requests_of(2, until="alarm", then=True),
            ],
        )
        await effects.reach("started", 6)

        await run_rabbitmqctl(node, "set_vm_memory_high_watermark", "absolute", "1MB")
        refused_requests: list[JobRequest] = []

        async def try_to_publish() -> list[type]:
            requests = requests_of(5)
            refused_requests.extend(requests)
            outcomes = await system.jobs.publish_many(requests)
            # Jobs sent before the broker announced the alarm are recorded, and run when it is over.
            unsent_errors = [
                type(outcome) for outcome in outcomes if not isinstance(outcome, Published)
            ]
            recorded_states = [
                outcome.state for outcome in outcomes if isinstance(outcome, Published)
            ]
            assert set(unsent_errors) <= {Blocked, BrokerUnavailable}
            assert set(recorded_states) <= {State.PENDING}
            return unsent_errors if Blocked in unsent_errors else []

        await eventually(try_to_publish, what="publishers are blocked by the alarm")
        assert "blocked" in {outcome for _, outcome in system.wire.counts}
        write(tmp_path, "alarm")
        await system.wait_until_all(accepted[:2], State.SUCCEEDED)
        assert set((await system.ledger.job_reads.states(accepted[2:])).values()) == {State.RUNNING}

        await run_rabbitmqctl(node, "set_vm_memory_high_watermark", "absolute", "2GB")
        accepted += [await system.stage_id(job_id, "effect", 0) for job_id in accepted[4:]]
        accepted += await publish_all(system, refused_requests)
        async with outbox(system):
            await assert_all_accounted_for(system, accepted)


async def run_rabbitmqctl(node: LocalNode, *arguments: str) -> None:
    await asyncio.to_thread(node.rabbitmqctl, *arguments)
