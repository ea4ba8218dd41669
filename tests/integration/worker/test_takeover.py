"""When a worker takes over another's jobs, and how it runs jobs that may have killed workers."""

import asyncio
import os
import time
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.retry import MAX_DEATHS
from switchyard.services.engine.records.requests import FinishRequest
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.runtime import execution
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System
from tests.support.workers import TAKEOVER_AFTER, FaultyLedger, claim_for


async def test_the_job_of_a_dead_worker_is_taken_over_once_it_is_silent(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await claim_for(system, message, "ghost")
    began = time.monotonic()
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert time.monotonic() - began >= TAKEOVER_AFTER
    assert record.crashes == 1
    assert [(line.outcome, line.worker_id) for line in record.timeline] == [
        (AttemptOutcome.CRASHED, "ghost")
    ]


async def test_the_job_of_a_worker_that_has_stopped_is_taken_over_at_once(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await claim_for(system, message, "ghost")
    await system.ledger.workers.mark_stopped("ghost")
    await system.start_worker("llm", takeover_after=60)
    await system.wait_for_state(message.job_id, State.SUCCEEDED)


@pytest.mark.parametrize("deaths", [1, MAX_DEATHS - 1])
async def test_a_job_that_ran_when_workers_died_runs_in_a_process_of_its_own(
    system: System, deaths: int
) -> None:
    message = await system.publish_foreign("hot.located")
    await claim_for_dead_workers(system, message, deaths)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert record.crashes == deaths
    assert record.result == {"parent": os.getpid(), "state": "running"}


async def test_a_suspect_that_kills_its_own_process_is_dead_and_harms_no_other_job(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.deadly")
    await claim_for_dead_workers(system, message, 1)
    worker = await system.start_worker("llm", slots=2)
    other_id = await system.publish("hot.gated")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type, record.crashes) == ("crashed", "ProcessCrashed", 1)
    assert [line.outcome for line in record.timeline] == ["crashed", "dead"]
    journal.release(other_id)
    await system.wait_for_state(other_id, State.SUCCEEDED)
    await eventually(lambda: worker.worker.counters.succeeded == 1, what="the worker's count")


async def test_suspects_leave_a_slot_to_other_jobs_of_their_lane(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspects = [await system.publish_foreign("hot.noop") for _ in range(6)]
    for number, message in enumerate(suspects):
        await claim_for(system, message, f"ghost-{number}")
    may_run, begun_ids = asyncio.Event(), []

    async def run_when_allowed(job_type: JobType, payload: Any, ctx: JobContext) -> Any:
        begun_ids.append(ctx.job_id)
        await may_run.wait()
        return await job_type.handler(payload, ctx)

    monkeypatch.setattr(execution, "_run_alone", run_when_allowed)
    await system.start_worker("llm", slots=4)

    async def another_runs() -> None:
        other_id = await system.publish("hot.noop")
        await system.wait_for_state(other_id, State.SUCCEEDED)

    await another_runs()  # while the suspects wait to be taken over
    await eventually(lambda: len(begun_ids) == 2)
    await another_runs()
    # One slot is left to suspects of the other lane, and one to other jobs.
    assert len(begun_ids) == 2
    may_run.set()
    for message in suspects:
        record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
        assert (record.crashes, record.attempts) == (1, 0)
        assert [line.outcome for line in record.timeline] == ["crashed"]


async def test_a_job_that_ran_at_max_deaths_of_workers_is_dead(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.noop")
    await claim_for_dead_workers(system, message, MAX_DEATHS)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type) == ("crashed", "WorkerCrashed")
    assert record.crashes == MAX_DEATHS
    letter = await system.wait_for_letter(message.job_id)
    assert letter.info.reason is Reason.CRASHED
    assert journal.starts == []


async def claim_for_dead_workers(system: System, message: JobMessage, deaths: int) -> None:
    """Let that many workers claim the job in turn; only the last one's death is not noticed yet."""
    claim_id = None
    for number in range(deaths):
        claim_id = await claim_for(system, message, f"ghost-{number}", takeover_from=claim_id)


async def test_the_job_of_a_living_worker_is_not_taken_over(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    claim_id = await claim_for(system, message, "living")

    async def send_heartbeats() -> None:
        while True:
            await system.ledger.workers.beat("living")
            await asyncio.sleep(0.05)

    heartbeats = asyncio.create_task(send_heartbeats())
    running = await system.start_worker("llm", takeover_after=1.0)
    # Its copy is put off, delivered again, put off again …
    for _ in range(2):
        await system.wait_until_ready("jobs.retry.100ms", 1)
        await system.wait_until_ready("jobs.retry.100ms", 0)
    finish = FinishRequest(message.job_id, claim_id, State.SUCCEEDED, attempts=0, now=time.time())
    assert await system.ledger.jobs.finish(finish)
    await eventually(lambda: running.worker.counters.skipped == 1)
    heartbeats.cancel()
    assert journal.starts == []
    record = await system.record(message.job_id)
    assert (record.state, record.crashes) == (State.SUCCEEDED, 0)


async def test_a_claim_whose_answer_was_lost_does_not_lock_out_its_own_worker(
    system: System,
) -> None:
    """The ledger has the worker's claim, but the job runs nowhere; no other worker takes it over,
    as this one lives.
    """
    faulty = FaultyLedger(system.ledger)
    faulty.loses_answer_of.add("claim")
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    job_id = await system.publish("hot.noop")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)
    assert running.worker.counters.returned == 1
