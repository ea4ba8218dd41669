"""A job is cancelled while it runs: nobody runs it again, whatever becomes of its worker."""

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import RedrivenCopy
from switchyard.services.engine.records.results import Claimed, Finished, JobRecord, Running
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.made import NOW, claim, finish, letter, new_job


async def cancel_while_running(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
    assert await ledger.jobs.cancel("job-1", NOW + 12) == Running("worker-1")
    assert await ledger.jobs.cancel("job-1", NOW + 15) == Running("worker-1")
    assert (await read_job(ledger)).cancel_asked_at == NOW + 12


async def read_job(ledger: Ledger) -> JobRecord:
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    return record


async def test_a_takeover_ends_the_job_instead_of_running_it(ledger: Ledger) -> None:
    await cancel_while_running(ledger)
    takeover = claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    assert await ledger.jobs.claim(takeover) == Finished(State.CANCELLED)
    record = await read_job(ledger)
    assert (record.state, record.reason) == (State.CANCELLED, "cancelled")
    assert [attempt.outcome for attempt in record.timeline] == [AttemptOutcome.CRASHED]
    assert not await ledger.jobs.finish(finish()), "the first worker was only slow"


async def test_a_claim_whose_answer_was_lost_is_not_given_again(ledger: Ledger) -> None:
    await cancel_while_running(ledger)
    assert await ledger.jobs.claim(claim()) == Finished(State.CANCELLED)


async def test_a_job_that_was_given_back_is_not_run(ledger: Ledger) -> None:
    await cancel_while_running(ledger)
    await ledger.jobs.release_all("worker-1", NOW + 20)
    assert (await read_job(ledger)).state is State.QUEUED
    assert await ledger.jobs.claim(claim(claim_id="claim-2")) == Finished(State.CANCELLED)
    assert (await read_job(ledger)).state is State.CANCELLED


@pytest.mark.parametrize("state", [State.RETRYING, State.QUEUED, State.DEAD])
async def test_the_job_is_cancelled_whatever_its_attempt_ended_in(
    ledger: Ledger, state: State
) -> None:
    await cancel_while_running(ledger)
    end = finish(state, outcome=AttemptOutcome.CRASHED, error_type="Boom", reason="exhausted")
    assert await ledger.jobs.finish(end)
    record = await read_job(ledger)
    assert (record.state, record.reason, record.error_type) == (
        State.CANCELLED,
        "cancelled",
        "Boom",
    )
    assert await ledger.jobs.finish(end), "its answer was lost, and the same end comes again"
    again = claim(claim_id="claim-2", attempts=1)
    assert await ledger.jobs.claim(again) == Finished(State.CANCELLED)


async def test_a_redrive_does_not_bring_the_job_back(ledger: Ledger) -> None:
    """Its worker published the dead letter, and died before it could record that."""
    await cancel_while_running(ledger)
    await ledger.dead_letters.index_dead([letter(dead_at=NOW + 20)])
    assert (await read_job(ledger)).state is State.CANCELLED
    await ledger.redrives.record_redriven([RedrivenCopy("job-1", 1)], NOW + 30)
    assert await ledger.jobs.claim(claim(claim_id="claim-2", redrives=1)) == Finished(
        State.CANCELLED
    )


async def test_a_job_that_succeeds_all_the_same_has_succeeded(ledger: Ledger) -> None:
    await cancel_while_running(ledger)
    assert await ledger.jobs.finish(finish(State.SUCCEEDED))
    assert (await read_job(ledger)).state is State.SUCCEEDED


async def test_cancelled_jobs_that_run_on_are_found(ledger: Ledger) -> None:
    await cancel_while_running(ledger)
    assert await ledger.job_reads.ignored_cancels(NOW + 12, 10) == []
    (job,) = await ledger.job_reads.ignored_cancels(NOW + 13, 10)
    assert (job.id, job.worker_id) == ("job-1", "worker-1")
    assert await ledger.jobs.finish(finish(State.CANCELLED, outcome=AttemptOutcome.CANCELLED))
    assert await ledger.job_reads.ignored_cancels(NOW + 13, 10) == []
