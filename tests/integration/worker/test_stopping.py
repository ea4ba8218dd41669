"""How a worker stops: what runs may end within the grace, and the rest goes back."""

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
from tests.support.workers import by


async def test_stop_lets_a_running_job_finish_within_the_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=20)
    held = await system.publish("hot.gated")
    await journal.started(held)
    waiting = await system.publish("hot.noop")
    stopping = asyncio.create_task(running.stop())
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    journal.release(held)
    await stopping
    assert await system.state(held) is State.SUCCEEDED
    assert await system.state(waiting) is State.QUEUED
    assert await system.ready("hot.llm") == 1


async def test_one_that_retires_takes_no_more_and_ends_with_its_last_job_beyond_any_grace(
    system: System,
) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held = await system.publish("hot.gated")
    await journal.started(held)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    waiting = await system.publish("hot.noop")
    await system.start_worker("llm", slots=1)
    await system.wait_for_state(waiting, State.SUCCEEDED)  # by the other
    assert await system.state(held) is State.RUNNING
    journal.release(held)
    await asyncio.wait_for(running.task, 20)
    record = await system.record(held)
    assert (record.state, record.timeline) == (State.SUCCEEDED, ())


async def test_one_that_retires_and_is_told_to_stop_has_its_grace(system: System) -> None:
    running = await system.start_worker("llm", slots=1, shutdown_grace=0.05)
    held = await system.publish("hot.gated")
    await journal.started(held)
    running.worker.retire()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()
    assert await system.state(held) is State.QUEUED


@pytest.mark.parametrize(
    ("key", "payload"), [("hot.gated", {}), ("hot.crunched", {"do": "spin"}), ("hot.stubborn", {})]
)
async def test_over_the_grace_a_job_goes_back_and_nothing_is_held_against_it(
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
async def test_what_follows_from_a_handler_is_seen_through_beyond_the_grace(
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


async def test_a_job_that_could_not_be_concluded_goes_back_and_counts_no_crash(
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


async def test_a_job_that_was_just_being_claimed_goes_back_and_counts_no_crash(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answer = asyncio.Event(), asyncio.Event()
    claim = system.ledger.jobs.claim

    async def slow(request: ClaimRequest) -> Any:
        result = await claim(request)
        claimed.set()
        await answer.wait()
        return result

    monkeypatch.setattr(system.ledger.jobs, "claim", slow)
    running = await system.start_worker("llm", shutdown_grace=0.1)
    job_id = await system.publish("hot.noop")
    await claimed.wait()
    assert await system.state(job_id) is State.RUNNING
    await running.stop()
    assert await system.state(job_id) is State.QUEUED
    answer.set()
    await system.start_worker("llm")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)


async def test_stop_ends_a_worker_that_can_not_reach_its_broker(
    system: System, proxy: TcpProxy
) -> None:
    running = await system.start_worker("llm", **by(proxy, system))
    proxy.refuse()
    proxy.cut()
    await eventually(lambda: set(running.worker.queue_states.values()) == {"away"})
    await running.stop()
