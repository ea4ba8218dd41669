"""Whose jobs a worker takes over, when, and how it meets those that others died of."""

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
from tests.support.workers import PATIENT, FaultyLedger, held_by


async def test_the_job_of_a_dead_worker_is_taken_over_once_it_is_silent(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by(system, message, "ghost")
    began = time.monotonic()
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert time.monotonic() - began >= PATIENT
    assert record.crashes == 1
    assert [(line.outcome, line.worker_id) for line in record.timeline] == [
        (AttemptOutcome.CRASHED, "ghost")
    ]


async def test_the_job_of_a_worker_that_has_stopped_is_taken_over_at_once(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by(system, message, "ghost")
    await system.ledger.workers.mark_stopped("ghost")
    await system.start_worker("llm", takeover_after=60)
    await system.wait_for_state(message.job_id, State.SUCCEEDED)


@pytest.mark.parametrize("deaths", [1, MAX_DEATHS - 1])
async def test_a_job_that_was_there_when_workers_died_runs_in_a_process_of_its_own(
    system: System, deaths: int
) -> None:
    message = await system.publish_foreign("hot.located")
    await held_by_dead(system, message, deaths)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert record.crashes == deaths
    assert record.result == {"parent": os.getpid(), "state": "running"}


async def test_a_suspect_that_kills_its_own_process_is_dead_and_harms_nobody(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.deadly")
    await held_by_dead(system, message, 1)
    worker = await system.start_worker("llm", slots=2)
    other = await system.publish("hot.gated")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type, record.crashes) == ("crashed", "ProcessCrashed", 1)
    assert [line.outcome for line in record.timeline] == ["crashed", "dead"]
    journal.release(other)
    await system.wait_for_state(other, State.SUCCEEDED)
    await eventually(lambda: worker.worker.counters.succeeded == 1, what="the worker's word")


async def test_suspects_leave_a_slot_to_other_jobs_of_their_lane(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspects = [await system.publish_foreign("hot.noop") for _ in range(6)]
    for number, message in enumerate(suspects):
        await held_by(system, message, f"ghost-{number}")
    go, begun = asyncio.Event(), []

    async def slowly(job_type: JobType, payload: Any, ctx: JobContext) -> Any:
        begun.append(ctx.job_id)
        await go.wait()
        return await job_type.handler(payload, ctx)

    monkeypatch.setattr(execution, "_run_alone", slowly)
    await system.start_worker("llm", slots=4)

    async def another_runs() -> None:
        other = await system.publish("hot.noop")
        await system.wait_for_state(other, State.SUCCEEDED)

    await another_runs()  # while they wait for the deaths of their workers
    await eventually(lambda: len(begun) == 2)
    await another_runs()
    assert len(begun) == 2  # one slot is for suspects of the other lane, and one for other jobs
    go.set()
    for message in suspects:
        record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
        assert (record.crashes, record.attempts) == (1, 0)
        assert [line.outcome for line in record.timeline] == ["crashed"]


async def test_a_job_that_was_there_whenever_a_worker_died_is_dead_at_last(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.noop")
    await held_by_dead(system, message, MAX_DEATHS)
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.DEAD)
    assert (record.reason, record.error_type) == ("crashed", "WorkerCrashed")
    assert record.crashes == MAX_DEATHS
    letter = await system.wait_for_letter(message.job_id)
    assert letter.info.reason is Reason.CRASHED
    assert journal.starts == []


async def held_by_dead(system: System, message: JobMessage, deaths: int) -> None:
    """So many workers had the job one after another; the last one's death is yet to be seen."""
    held = None
    for number in range(deaths):
        held = await held_by(system, message, f"ghost-{number}", takeover_from=held)


async def test_the_job_of_a_living_worker_is_left_to_it(system: System) -> None:
    message = await system.publish_foreign("hot.noop")
    claim_id = await held_by(system, message, "living")

    async def live() -> None:
        while True:
            await system.ledger.workers.beat("living")
            await asyncio.sleep(0.05)

    living = asyncio.create_task(live())
    running = await system.start_worker("llm", takeover_after=1.0)
    # Its copy is put off, looked at again, put off again …
    for _ in range(2):
        await system.wait_until_ready("jobs.retry.100ms", 1)
        await system.wait_until_ready("jobs.retry.100ms", 0)
    done = FinishRequest(message.job_id, claim_id, State.SUCCEEDED, attempts=0, now=time.time())
    assert await system.ledger.jobs.finish(done)
    await eventually(lambda: running.worker.counters.skipped == 1)
    living.cancel()
    assert journal.starts == []
    record = await system.record(message.job_id)
    assert (record.state, record.crashes) == (State.SUCCEEDED, 0)


async def test_a_claim_whose_answer_was_lost_does_not_lock_out_its_own_worker(
    system: System,
) -> None:
    """The job is ours in the ledger and runs nowhere; we live, so nobody takes it from us."""
    faulty = FaultyLedger(system.ledger)
    faulty.loses_answer_of.add("claim")
    running = await system.start_worker("llm", ledger=faulty)  # type: ignore[arg-type]
    job_id = await system.publish("hot.noop")
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert (record.crashes, journal.runs(job_id)) == (0, 1)
    assert running.worker.counters.returned == 1
