"""Which queues a worker consumes, and how it starts before its broker or ledger."""

import asyncio
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.records.errors import LedgerAuthError
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.worker import (
    LANE_WORKER_PRIORITY,
    UnknownWorker,
    WorkerPlan,
    plan_for,
)
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.peers import closes, listening
from tests.support.system import JOB_MODULES, System, open_system
from tests.support.tcp_proxy import TcpProxy
from tests.support.workers import TAKEOVER_AFTER, FaultyLedger, through_proxy, wait_for_heartbeat


def test_a_plan_has_the_lanes_of_its_worker_kind_and_one_reserved_slot() -> None:
    registry = Registry.load(JOB_MODULES)
    plan = plan_for(registry, "llm", slots=4)
    assert plan == WorkerPlan("llm", ("hot", "backfill"), 4, reserve=1, consumer_priority=0)
    assert plan.queues == ["hot.llm", "backfill.llm"]
    assert plan_for(registry, "link", slots=4).queues == ["hot.link", "maintenance.link"]
    assert plan_for(registry, "llm", slots=1).reserve == 0
    assert plan_for(registry, "llm", slots=3, reserve=9).reserve == 2
    backfill_plan = plan_for(registry, "llm", slots=4, lanes=["backfill"])
    assert (backfill_plan.queues, backfill_plan.consumer_priority) == (
        ["backfill.llm"],
        LANE_WORKER_PRIORITY,
    )


def test_a_worker_kind_or_lane_without_job_types_is_refused_and_the_others_named() -> None:
    registry = Registry.load(JOB_MODULES)
    with pytest.raises(UnknownWorker, match="embed, link, llm"):
        plan_for(registry, "ocr", slots=1)
    with pytest.raises(UnknownWorker, match="hot, backfill"):
        plan_for(registry, "llm", slots=1, lanes=["maintenance"])


async def test_a_worker_of_several_kinds_has_slots_for_each(system: System) -> None:
    running = await system.start_worker("llm", "embed", slots=1)
    assert set(running.worker.queue_states) == {
        *("hot.llm", "backfill.llm"),
        *("hot.embed", "backfill.embed"),
    }
    held_id = await system.publish("hot.gated")
    await journal.started(held_id)
    other_id = await system.publish("hot.received")
    await system.wait_for_state(other_id, State.SUCCEEDED)


async def test_the_ledger_has_a_worker_from_its_start_to_its_stop(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url, takeover_after=TAKEOVER_AFTER) as system:
        running = await system.start_worker("llm", "link", slots=3)
        (record,) = await system.ledger.workers.list_workers()
        assert record.worker_id == running.worker_id
        assert (record.kinds, record.lanes) == (("llm", "link"), ("backfill", "hot", "maintenance"))
        assert (record.concurrency, record.stopped_at) == (6, None)
        await wait_for_heartbeat(system, running.worker_id)
        await running.stop()
        (record,) = await system.ledger.workers.list_workers()
        assert record.stopped_at is not None


async def test_a_worker_sends_heartbeats_often_while_it_has_a_job_and_rarely_otherwise(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, takeover_after=0.8) as system:
        running = await system.start_worker("llm")

        async def count_beats(seconds: float) -> int:
            count_before = await system.ledger.workers.worker_beat(running.worker_id)
            await asyncio.sleep(seconds)
            count_after = await system.ledger.workers.worker_beat(running.worker_id)
            assert count_before is not None
            assert count_after is not None
            return count_after - count_before

        assert await count_beats(1.5) <= 1  # every 3 s
        held_id = await system.publish("hot.gated")
        await journal.started(held_id)
        # Every 0.2 s, or others would take the job over.
        assert await count_beats(1.5) >= 3
        journal.release(held_id)
        await system.wait_for_state(held_id, State.SUCCEEDED)
        await wait_for_heartbeat(system, running.worker_id)
        assert await count_beats(1.5) <= 1


async def test_a_worker_records_when_it_last_took_a_hot_job(system: System) -> None:
    await system.start_worker("llm")

    async def read_hot_at() -> float | None:
        (record,) = await system.ledger.workers.list_workers()
        return record.hot_at

    backfill_id = await system.publish("backfill.scripted", {"steps": ["done"]})
    await system.wait_for_state(backfill_id, State.SUCCEEDED)
    (worker,) = await system.ledger.workers.list_workers()
    await wait_for_heartbeat(system, worker.worker_id)
    await wait_for_heartbeat(system, worker.worker_id)
    assert await read_hot_at() is None
    # Its own `created_at` does not count: the clocks of publishers are not trusted.
    times = {"created_at": datetime(2020, 1, 1, tzinfo=UTC), "queued_at": datetime.now(UTC)}
    message = JobMessage(
        job_type="scripted", payload={"steps": ["done"]}, metadata=Metadata(**times)
    )
    async with Publisher(system.settings) as publisher:
        await publisher.publish(message, "hot.scripted")

    async def is_recorded() -> bool:
        return await read_hot_at() is not None

    await eventually(is_recorded)


async def test_a_worker_waits_for_a_ledger_that_is_away_when_it_starts(system: System) -> None:
    faulty = FaultyLedger(system.ledger)
    faulty.away.add("register_worker")
    job_id = await system.publish("hot.noop")
    with capture_logs() as logs:
        running = await system.start_worker("llm", ledger=faulty, wait=False)  # type: ignore[arg-type]
        await eventually(lambda: any("waiting for the ledger" in log["event"] for log in logs))
    assert not running.worker.is_consuming
    faulty.away.clear()
    await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_a_worker_that_waits_for_its_ledger_can_be_stopped(system: System) -> None:
    faulty = FaultyLedger(system.ledger)
    faulty.away.add("*")
    running = await system.start_worker("llm", ledger=faulty, wait=False)  # type: ignore[arg-type]
    await asyncio.wait_for(running.stop(), MAX_WAIT)


async def test_a_worker_does_not_start_with_a_ledger_that_refuses_it(system: System) -> None:
    faulty = FaultyLedger(system.ledger)
    faulty.away.add("register_worker")
    faulty.error = LedgerAuthError("its tables are outdated")
    running = await system.start_worker("llm", ledger=faulty, wait=False)  # type: ignore[arg-type]
    with pytest.raises(LedgerAuthError):
        await running.task
    system.workers.clear()


async def test_a_worker_waits_at_a_port_that_hangs_up_until_a_broker_is_there(
    system: System, proxy: TcpProxy
) -> None:
    proxy.refuse()
    with listening(closes, proxy.port):
        worker = await system.start_worker("llm", wait=False, **through_proxy(proxy, system))
        await asyncio.sleep(0.5)
        assert not worker.task.done()
    await proxy.accept()
    await worker.consuming()
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)
