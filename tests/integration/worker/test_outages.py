"""A worker whose broker or ledger is away, or who can't say that it lives."""

import asyncio
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
from tests.support.workers import FaultyLedger, another_beat, by


async def test_a_job_runs_on_when_the_connection_is_lost_and_is_not_run_again(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **by(proxy, system))
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    for _ in range(2):
        before = proxy.connections
        proxy.cut()
        await eventually(lambda before=before: proxy.connections > before)  # type: ignore[misc]
        await running.consuming()
    management = system.broker.management
    await management.wait_for("hot.llm", messages_unacknowledged=1, messages=1)
    journal.release(job_id)
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (journal.runs(job_id), record.crashes, record.timeline) == (1, 0, ())
    assert running.worker.counters.skipped == 0
    await management.wait_until_depth("hot.llm", 0)  # the new delivery was settled


async def test_a_retry_that_its_own_worker_gets_back_too_early_is_not_swallowed(
    broker310: TestBroker, sqlite_url: str, proxy: TcpProxy
) -> None:
    """The retry is published, the ledger is away, the connection is lost; then the retry is back
    before the job itself. The attempt, not yet recorded, may settle only the latter."""
    async with open_system(broker310, sqlite_url, retry_delays=(0.1, 60)) as system:
        faulty = FaultyLedger(system.ledger)
        faulty.away.add("finish")
        running = await system.start_worker("llm", ledger=faulty, **by(proxy, system))  # type: ignore[arg-type]
        steps = {"steps": ["retry:30", "done"]}
        job_id = await system.publish("hot.scripted", steps, priority=1)
        retry = await system.take("jobs.retry.60s")
        proxy.refuse()
        proxy.cut()
        await system.wait_until_ready("hot.llm", 1)
        first = Envelope(retry.body, job_id, priority=10)
        await system.wire.send(JOBS_EXCHANGE, "hot.scripted", first)
        await proxy.accept()
        await running.consuming()
        await system.wait_until_ready("hot.llm", 0)
        faulty.away.clear()
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.attempts, journal.runs(job_id)) == (1, 2)


async def test_while_the_ledger_is_away_nothing_is_taken_and_nothing_is_lost(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    held = await system.publish("hot.gated")
    await journal.started(held)
    faulty.away.add("*")
    ids = [await system.publish("hot.noop") for _ in range(20)]
    await eventually(lambda: set(running.worker.queue_states.values()) == {"resting"})
    journal.release(held)
    await system.wait_until_ready("hot.llm", 20)
    assert await system.state(held) is State.RUNNING
    faulty.away.clear()
    await system.wait_until_all([held, *ids], State.SUCCEEDED)
    assert [journal.runs(job_id) for job_id in (held, *ids)] == [1] * 21
    assert [record.crashes for record in [await system.record(each) for each in ids]] == [0] * 20
    await running.consuming()


async def test_a_worker_goes_on_giving_signs_of_life_after_the_ledger_was_away(
    system: System,
) -> None:
    faulty = FaultyLedger(system.ledger)
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    faulty.away.add("beat")
    await eventually(lambda: "resting" in running.worker.queue_states.values())
    faulty.away.clear()
    await running.consuming()
    await another_beat(system, running.worker_id)


async def test_a_worker_whose_disk_is_full_gives_signs_of_life_and_works(
    system: System, tmp_path: Path
) -> None:
    """Its log can't be written: that must not end what nobody waits for."""
    async with Processes(system.settings, tmp_path) as processes:
        worker = await processes.start("worker", log=Path("/dev/full"))
        await another_beat(system, worker.worker_id)
        job_id = await system.publish("hot.noop")
        await system.wait_for_state(job_id, State.SUCCEEDED)
        await another_beat(system, worker.worker_id)
        worker.terminate()
        await worker.ended()


async def test_a_worker_that_can_not_give_signs_of_life_ends(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(system.ledger.workers, "beat", fails)
    worker = await system.start_worker("llm", ledger=system.ledger)
    with pytest.raises(BackgroundFailed, match=r"beat.*a bug"):
        await asyncio.wait_for(asyncio.shield(worker.task), 15)
    system.workers.remove(worker)
