"""A worker whose broker or ledger can't be reached, or which can't send heartbeats."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.lanes import JOBS_EXCHANGE
from switchyard.broker.task_supervisor import BackgroundFailed
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_process import Processes
from tests.support.workers import FaultyLedger, through_proxy, wait_for_heartbeat


def is_reconnected(proxy: TcpProxy, connections_before: int) -> bool:
    return proxy.connections > connections_before


async def test_a_job_runs_on_when_the_connection_is_lost_and_is_not_run_again(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **through_proxy(proxy, system))
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    for _ in range(2):
        connections_before = proxy.connections
        proxy.cut()
        await eventually(partial(is_reconnected, proxy, connections_before))
        await running.consuming()
    management = system.broker.management
    await management.wait_for("hot.llm", messages_unacknowledged=1, messages=1)
    journal.release(job_id)
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (journal.runs(job_id), record.crashes, record.timeline) == (1, 0, ())
    assert running.worker.counters.skipped == 0
    await management.wait_until_depth("hot.llm", 0)  # the new delivery was settled


async def test_a_retry_delivered_before_its_job_was_settled_is_not_lost(
    broker310: TestBroker, sqlite_url: str, proxy: TcpProxy
) -> None:
    """The retry is published, the ledger is away, and the connection is lost. Then the broker
    delivers the retry before the job itself. The attempt, which is not recorded yet, may settle
    only the job's own message.
    """
    async with open_system(broker310, sqlite_url, retry_delays=(0.1, 60)) as system:
        faulty = FaultyLedger(system.ledger)
        faulty.away.add("finish")
        running = await system.start_worker("llm", ledger=faulty, **through_proxy(proxy, system))  # type: ignore[arg-type]
        steps = {"steps": ["retry:30", "done"]}
        job_id = await system.publish("hot.scripted", steps, priority=1)
        retry = await system.take("jobs.retry.60s")
        proxy.refuse()
        proxy.cut()
        await system.wait_until_ready("hot.llm", 1)
        early_retry = Envelope(retry.body, job_id, priority=10)
        await system.wire.send(JOBS_EXCHANGE, "hot.scripted", early_retry)
        await proxy.accept()
        await running.consuming()
        await system.wait_until_ready("hot.llm", 0)
        faulty.away.clear()
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.attempts, journal.runs(job_id)) == (1, 2)


async def test_while_the_ledger_is_away_a_worker_takes_no_jobs_and_loses_none(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    held_id = await system.publish("hot.gated")
    await journal.started(held_id)
    faulty.away.add("*")
    ids = [await system.publish("hot.noop") for _ in range(20)]
    await eventually(lambda: set(running.worker.queue_states.values()) == {"resting"})
    journal.release(held_id)
    await system.wait_until_ready("hot.llm", 20)
    assert await system.state(held_id) is State.RUNNING
    faulty.away.clear()
    await system.wait_until_all([held_id, *ids], State.SUCCEEDED)
    assert [journal.runs(job_id) for job_id in (held_id, *ids)] == [1] * 21
    assert [(await system.record(job_id)).crashes for job_id in ids] == [0] * 20
    await running.consuming()


async def test_a_worker_sends_heartbeats_again_after_the_ledger_was_away(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    faulty.away.add("beat")
    await eventually(lambda: "resting" in running.worker.queue_states.values())
    faulty.away.clear()
    await running.consuming()
    await wait_for_heartbeat(system, running.worker_id)


async def test_a_worker_whose_disk_is_full_sends_heartbeats_and_runs_jobs(
    system: System, tmp_path: Path
) -> None:
    """It can't write its log: that must not end its background tasks."""
    async with Processes(system.settings, tmp_path) as processes:
        worker = await processes.start("worker", log=Path("/dev/full"))
        await wait_for_heartbeat(system, worker.worker_id)
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)
        await wait_for_heartbeat(system, worker.worker_id)
        worker.terminate()
        await worker.ended()


async def test_a_worker_that_can_not_send_heartbeats_ends(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(system.ledger.workers, "beat", fail)
    worker = await system.start_worker("llm", ledger=system.ledger)
    with pytest.raises(BackgroundFailed, match=r"beat.*a bug"):
        await asyncio.wait_for(asyncio.shield(worker.task), 15)
    system.workers.remove(worker)
