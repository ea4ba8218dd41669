import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.requests import FinishRequest
from switchyard.services.engine.records.results import (
    AlreadyFinished,
    Cancelled,
    Claimed,
    NoSuchJob,
    Running,
)
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.made import NOW, claim, finish, new_job


async def test_a_succeeded_job_keeps_its_result_and_has_no_timeline(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    assert await ledger.jobs.finish(finish(result={"pages": 3}))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.result, record.timeline) == (State.SUCCEEDED, {"pages": 3}, ())
    assert (record.attempts, record.finished_at) == (1, NOW + 20)


async def test_a_failed_attempt_stands_in_the_timeline(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    failed = finish(
        State.RETRYING,
        outcome=AttemptOutcome.RETRY,
        reason="HTTP 503",
        error_type="HTTPStatusError",
        error_message="503 from the server",
    )
    assert await ledger.jobs.finish(failed)
    await ledger.jobs.claim(claim(claim_id="claim-2", attempts=1))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.reason == "HTTP 503"  # while the next attempt runs, the last error is shown
    (attempt,) = record.timeline
    assert (attempt.attempt, attempt.outcome, attempt.error_type) == (
        1,
        "retry",
        "HTTPStatusError",
    )


async def test_success_clears_the_last_error(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.RETRYING, reason="HTTP 503"))
    await ledger.jobs.claim(claim(claim_id="claim-2", attempts=1))
    await ledger.jobs.finish(finish(claim_id="claim-2", attempts=2))
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.reason is None


async def test_a_finish_after_a_takeover_changes_nothing(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.claim(
        claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    )
    before = await ledger.job_reads.get("job-1")
    late = finish(result={"by": "the dead"}, outcome=AttemptOutcome.RETRY)
    assert not await ledger.jobs.finish(late)
    assert await ledger.job_reads.get("job-1") == before


async def test_a_finish_of_an_unknown_job_is_refused(ledger: Ledger) -> None:
    assert not await ledger.jobs.finish(finish(job_id="nobody"))


async def test_the_same_finish_again_is_true_and_writes_nothing_twice(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    dead = finish(State.DEAD, outcome=AttemptOutcome.DEAD, reason="exhausted")
    assert await ledger.jobs.finish(dead)
    assert await ledger.jobs.finish(dead)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert len(record.timeline) == 1


async def test_a_snoozed_job_uses_up_no_attempt(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    snoozed = finish(State.QUEUED, attempts=0, outcome=AttemptOutcome.SNOOZE)
    assert await ledger.jobs.finish(snoozed)
    assert await ledger.jobs.claim(claim(claim_id="claim-2")) == Claimed(crashes=0)


async def test_a_result_that_is_not_json_is_refused(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    with pytest.raises(RowRejected, match="JSON"):
        await ledger.jobs.finish(finish(result={"file": object()}))


def test_an_attempt_does_not_end_as_scheduled() -> None:
    with pytest.raises(ValueError, match="scheduled"):
        FinishRequest("job-1", "claim-1", State.SCHEDULED, attempts=0, now=NOW)


async def test_a_worker_that_stops_gives_its_jobs_back(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.claim(claim("job-2", "claim-2"))
    await ledger.jobs.claim(claim("job-3", "claim-3", worker_id="worker-2"))
    assert await ledger.jobs.release_all("worker-1", NOW) == 2
    assert await ledger.jobs.release_all("worker-1", NOW) == 0
    assert not await ledger.jobs.finish(finish())
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.crashes) == (State.QUEUED, 0)
    assert [attempt.outcome for attempt in record.timeline] == ["released"]
    assert await ledger.jobs.claim(claim(claim_id="claim-4")) == Claimed(crashes=0, unended=1)
    assert await ledger.jobs.finish(finish(job_id="job-3", claim_id="claim-3"))


async def test_a_cancel_answers_by_the_state_of_the_job(ledger: Ledger) -> None:
    assert await ledger.jobs.cancel("job-1", NOW) == NoSuchJob()
    await ledger.jobs.record(new_job())
    await ledger.jobs.claim(claim())
    assert await ledger.jobs.cancel("job-1", NOW) == Running("worker-1")
    assert await ledger.jobs.finish(finish(State.CANCELLED, outcome=AttemptOutcome.CANCELLED))
    assert await ledger.jobs.cancel("job-1", NOW) == AlreadyFinished(State.CANCELLED)
    await ledger.jobs.record(new_job("job-2"))
    assert await ledger.jobs.cancel("job-2", NOW) == Cancelled()
