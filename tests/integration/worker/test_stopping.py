"""How a worker stops: running jobs may end within the grace, all others go back."""

import asyncio
import time
from typing import Any

import pytest

from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.runtime.worker import FINAL_DRAIN_TIMEOUT
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System
from tests.support.tcp_proxy import TcpProxy
from tests.support.workers import through_proxy


async def test_stop_lets_a_running_job_finish_within_the_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=20)
    held_id = await system.publish("hot.gated")
    await journal.started(held_id)
    waiting_id = await system.publish("hot.noop")
    stopping = asyncio.create_task(running.stop())
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    journal.release(held_id)
    await stopping
    assert await system.state(held_id) is State.SUCCEEDED
    assert await system.state(waiting_id) is State.QUEUED
    assert await system.ready("hot.llm") == 1


async def test_a_retiring_worker_takes_no_more_jobs_and_ends_with_its_last_one_beyond_the_grace(
    system: System,
) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held_id = await system.publish("hot.gated")
    await journal.started(held_id)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    waiting_id = await system.publish("hot.noop")
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(waiting_id, State.SUCCEEDED)  # by the second worker
    assert await system.state(held_id) is State.RUNNING
    journal.release(held_id)
    await asyncio.wait_for(running.task, 20)
    record = await system.record(held_id)
    assert (record.state, record.timeline) == (State.SUCCEEDED, ())


async def test_a_retiring_worker_that_is_told_to_stop_ends_after_its_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held_id = await system.publish("hot.gated")
    await journal.started(held_id)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()
    assert await system.state(held_id) is State.QUEUED


@pytest.mark.parametrize(
    ("key", "payload"), [("hot.gated", {}), ("hot.crunched", {"do": "spin"}), ("hot.stubborn", {})]
)
async def test_a_job_running_beyond_the_grace_goes_back_without_an_attempt_or_crash(
    system: System, key: str, payload: dict[str, Any]
) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.1)
    job_id = await system.publish(key, payload)
    await system.wait_for_state(job_id, State.RUNNING)
    if "crunched" not in key:
        await journal.started(job_id)
    stopped_at = time.monotonic()
    await running.stop()
    if "gated" in key:
        assert time.monotonic() - stopped_at < FINAL_DRAIN_TIMEOUT
    if "stubborn" not in key:
        assert running.worker.counters.returned == 1
    record = await system.record(job_id)
    assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
    assert [line.outcome for line in record.timeline] == [AttemptOutcome.RELEASED]
    assert await system.ready("hot.llm") == 1
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(job_id, State.RUNNING, State.SUCCEEDED)
    assert (await system.record(job_id)).crashes == 0
    journal.release(job_id)


@pytest.mark.parametrize("step", ["raise", "permanent"])
async def test_a_dead_letter_under_way_is_confirmed_and_recorded_beyond_the_grace(
    system: System, publishing_proxy: TcpProxy, step: str
) -> None:
    running = await system.start_worker("llm", shutdown_grace=0.1)
    await running.publishing()
    publishing_proxy.pause("to_client")
    job_id = await system.publish("hot.scripted", {"steps": [step]}, max_attempts=1)
    await system.wait_for_letter(job_id)
    stopping = asyncio.create_task(running.stop())
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await asyncio.sleep(0.3)  # beyond the grace
    assert not stopping.done()
    publishing_proxy.resume()
    await stopping
    record = await system.record(job_id)
    assert (record.state, record.attempts) == (State.DEAD, 1)
    assert len(await system.letters()) == 1
    assert await system.ready("hot.llm") == 0


async def test_a_job_whose_retry_could_not_be_published_goes_back_and_counts_no_crash(
    system: System, publishing_proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", shutdown_grace=0.1)
    await running.publishing()
    publishing_proxy.refuse()
    publishing_proxy.cut()
    job_id = await system.publish("hot.scripted", {"steps": ["raise", "done"]})
    await journal.started(job_id)
    await running.stop()
    record = await system.record(job_id)
    assert (record.state, record.attempts, record.crashes) == (State.QUEUED, 0, 0)
    await publishing_proxy.accept()
    await system.start_worker("llm")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.attempts, record.crashes, journal.runs(job_id)) == (0, 0, 2)


async def test_a_job_whose_claim_is_not_answered_yet_goes_back_and_counts_no_crash(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, may_answer = asyncio.Event(), asyncio.Event()
    claim = system.ledger.jobs.claim

    async def claim_slowly(request: ClaimRequest) -> Any:
        result = await claim(request)
        claimed.set()
        await may_answer.wait()
        return result

    monkeypatch.setattr(system.ledger.jobs, "claim", claim_slowly)
    running = await system.start_worker("llm", shutdown_grace=0.1)
    job_id = await system.publish("hot.noop")
    await claimed.wait()
    assert await system.state(job_id) is State.RUNNING
    await running.stop()
    assert await system.state(job_id) is State.QUEUED
    may_answer.set()
    await system.start_worker("llm")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)


async def test_stop_ends_a_worker_that_can_not_reach_its_broker(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **through_proxy(proxy, system))
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()
