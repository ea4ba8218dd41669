"""Progress and checkpoints of handlers, on a real broker and ledger: seen while the job runs,
written rarely, and kept for the next attempt, whatever was killed."""

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.services.engine.ledger.progress import ProgressRepository
from switchyard.services.engine.monitoring import loop_watch
from switchyard.services.engine.records.progress import ProgressRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.runtime.progress_writer import WRITE_INTERVAL
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system
from tests.support.worker_process import Processes


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, sqlite_url, retry_delays=(0.1, 0.2)) as opened:
        yield opened


async def read_progress(system: System, job_id: str) -> tuple[float | None, str] | None:
    progress = (await system.record(job_id)).progress
    return None if progress is None else (progress.fraction, progress.note)


async def wait_for_progress(system: System, job_id: str, fraction: float, note: str) -> None:
    async def is_reported() -> bool:
        return await read_progress(system, job_id) == (fraction, note)

    await eventually(is_reported, what="the job's progress")


async def test_progress_is_seen_while_the_job_runs(broker: TestBroker, database_url: str) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker("llm")
        job_id = await system.publish("hot.telling", {"reports": 4})
        await journal.started(job_id)
        await wait_for_progress(system, job_id, 1.0, "4 of 4")
        assert await system.state(job_id) is State.RUNNING
        journal.release(job_id)
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.progress is not None
        assert record.progress.note == "4 of 4"


async def test_ten_thousand_reports_are_a_few_writes_and_the_last_one_is_kept(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[tuple[str, float]] = []
    save = ProgressRepository.save

    async def record_and_save(self: ProgressRepository, request: ProgressRequest) -> bool:
        writes.append((request.message.job_id, time.monotonic()))
        return await save(self, request)

    monkeypatch.setattr(ProgressRepository, "save", record_and_save)
    await system.start_worker("llm", slots=8)
    job_ids = [await system.publish("hot.telling", {"reports": 10_000}) for _ in range(8)]
    await journal.started(*job_ids)
    journal.release_all()
    for job_id in job_ids:
        await system.wait_for_state(job_id, State.SUCCEEDED)
        assert await read_progress(system, job_id) == (1.0, "10000 of 10000")
        written_at = [at for written_id, at in writes if written_id == job_id]
        # One at the start, one a second, and the last one at the end.
        assert len(written_at) <= 2 + (written_at[-1] - written_at[0]) / WRITE_INTERVAL


async def test_the_last_progress_of_a_job_in_a_process_of_its_own_is_recorded(
    system: System,
) -> None:
    await system.start_worker("llm")
    job_id = await system.publish("hot.telling_alone", {"reports": 500})
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert await read_progress(system, job_id) == (1.0, "500 of 500")


@pytest.mark.parametrize("end", ["spin", "die", "raise", "retry"])
async def test_whatever_ends_an_attempt_the_next_one_goes_on_at_its_checkpoint(
    system: System, end: str
) -> None:
    await system.start_worker("llm")
    payload = {"reports": 30, "keep": True, "end": end}
    job_id = await system.publish("hot.telling_alone", payload)
    record = await system.wait_for_state(job_id, State.SUCCEEDED, State.DEAD)
    assert (record.state, record.result) == (State.SUCCEEDED, {"last": {"done": 30}})
    assert record.checkpoint_at is None


@pytest.mark.parametrize("end", ["raise", "snooze", "retry"])
async def test_a_checkpoint_is_there_at_the_next_attempt_and_gone_at_the_end(
    system: System, end: str
) -> None:
    await system.start_worker("llm")
    job_id = await system.publish("hot.telling", {"reports": 3, "keep": True, "end": end})
    journal.release(job_id)
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert journal.checkpoints == [(job_id, None), (job_id, {"done": 3})]
    assert record.checkpoint_at is None


async def test_a_checkpoint_outlives_a_worker_that_is_killed(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, database_url, takeover_after=1) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        worker = await processes.start("worker")
        job_id = await system.publish("hot.telling", {"reports": 7, "keep": True})
        await wait_for_progress(system, job_id, 1.0, "7 of 7")
        worker.kill()
        await worker.ended()
        await system.start_worker("llm")
        record = await system.wait_for_state(job_id, State.SUCCEEDED, timeout=30)
        assert (record.crashes, record.result) == (1, {"last": {"done": 7}})


async def test_progress_is_an_event(system: System) -> None:
    await system.start_worker("llm")
    events: list[dict[str, Any]] = []
    async with system.channel() as channel:
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(EVENTS_EXCHANGE, "progress.hot.telling")

        async def record_event(message: Any) -> None:
            events.append(json.loads(message.body))

        await queue.consume(record_event, no_ack=True)
        job_id = await system.publish("hot.telling", {"reports": 2})
        await eventually(lambda: events)
        journal.release(job_id)
        await system.wait_for_state(job_id, State.SUCCEEDED)
    (event,) = events
    assert (event["job_id"], event["fraction"], event["note"]) == (job_id, 1.0, "2 of 2")


async def test_progress_is_recorded_after_the_ledger_was_away(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.services.engine.records.errors import LedgerUnavailable

    save, has_refused = ProgressRepository.save, asyncio.Event()

    async def refuse_once(self: ProgressRepository, request: ProgressRequest) -> bool:
        if not has_refused.is_set():
            has_refused.set()
            raise LedgerUnavailable("away")
        return await save(self, request)

    monkeypatch.setattr(ProgressRepository, "save", refuse_once)
    await system.start_worker("llm")
    job_id = await system.publish("hot.telling", {"reports": 2})
    await journal.started(job_id)
    await has_refused.wait()
    await wait_for_progress(system, job_id, 1.0, "2 of 2")
    journal.release(job_id)
    await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_the_objects_of_an_ended_job_are_freed_without_the_collector(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects that refer to each other are found only by the collector, which looks through all
    living ones: 14 of them for each job cost a tenth of a worker's processor time."""
    # On a busy machine the worker would record blocked event loops, each in a ledger that it opens
    # for that: 190 objects.
    monkeypatch.setattr(loop_watch, "BLOCKED_AFTER", 600.0)
    await system.start_worker("llm")
    warm_up_ids = [await system.publish("hot.noop", {}) for _ in range(20)]
    for job_id in warm_up_ids:
        await system.wait_for_state(job_id, State.SUCCEEDED)
    gc.disable()
    try:
        # Objects of earlier tests in this process may be collected in one of the rounds.
        for _ in range(3):
            gc.collect()
            job_ids = [await system.publish("hot.noop", {}) for _ in range(100)]
            for job_id in job_ids:
                await system.wait_for_state(job_id, State.SUCCEEDED)
            if (collected := gc.collect()) < len(job_ids):
                break
        assert collected < len(job_ids)
    finally:
        gc.enable()
