import asyncio
from dataclasses import replace
from typing import Any

import pytest

from switchyard.broker.times import to_datetime
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.results import (
    Cancelled,
    Claimed,
    ClaimResult,
    Finished,
    HeldByWorker,
    IdCollision,
    Superseded,
    Suspect,
)
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.made import NOW, claim, finish, letter, message, new_job, record_redrive


async def test_a_job_without_a_record_gets_one_when_it_is_claimed(ledger: Ledger) -> None:
    job = message(payload={"text": "from elsewhere"}, source="arxiv")
    assert await ledger.jobs.claim(claim(job)) == Claimed(crashes=0)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.source, record.payload) == (State.RUNNING, "arxiv", job.payload)
    assert (record.worker_id, record.claim_id, record.started_at) == (
        "worker-1",
        "claim-1",
        NOW + 10,
    )


@pytest.mark.parametrize("is_confirmed", [False, True])
async def test_a_waiting_job_is_claimed(ledger: Ledger, is_confirmed: bool) -> None:
    await ledger.jobs.record(new_job())
    if is_confirmed:
        await ledger.jobs.mark_queued(["job-1"], NOW)
    assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)


@pytest.mark.parametrize(("due_in", "answer"), [(3600, IdCollision()), (30, Claimed(crashes=0))])
async def test_a_scheduled_job_waits_for_its_time_whatever_is_published(
    ledger: Ledger, due_in: float, answer: ClaimResult
) -> None:
    await ledger.jobs.record(new_job(run_at=NOW + 10 + due_in))
    assert await ledger.jobs.claim(claim()) == answer


async def test_a_job_that_waits_for_its_retry_is_claimed(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.RETRYING, outcome=AttemptOutcome.RETRY))
    assert await ledger.jobs.claim(claim(claim_id="claim-2", attempts=1)) == Claimed(crashes=0)


async def test_a_succeeded_job_is_not_run_again_not_even_redriven(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish())
    again = claim(claim_id="claim-2", redrives=1)
    assert await ledger.jobs.claim(again) == Finished(State.SUCCEEDED)


async def test_a_cancelled_job_is_never_run(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    assert await ledger.jobs.cancel("job-1", NOW) == Cancelled()
    for redrives in (0, 1, 2):
        answer = await ledger.jobs.claim(claim(claim_id=f"c{redrives}", redrives=redrives))
        assert answer == Finished(State.CANCELLED)


async def test_a_dead_job_is_run_only_when_it_was_redriven(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.DEAD, attempts=3))
    assert await ledger.jobs.claim(claim(claim_id="c2", attempts=9)) == Finished(State.DEAD)
    # No redrive is recorded:
    assert await ledger.jobs.claim(claim(claim_id="c2", redrives=1)) == IdCollision()
    await record_redrive(ledger, 1)
    assert await ledger.jobs.claim(claim(claim_id="c2", redrives=2)) == IdCollision()
    assert await ledger.jobs.claim(claim(claim_id="c3", redrives=1)) == Claimed(crashes=0)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.redrives, record.attempts, record.finished_at) == (1, 0, None)


@pytest.mark.parametrize(("redrives", "attempts"), [(1, 0), (0, 5)])
async def test_an_older_copy_is_superseded(ledger: Ledger, redrives: int, attempts: int) -> None:
    await ledger.jobs.claim(claim(redrives=1, attempts=1))
    await ledger.jobs.finish(finish(State.RETRYING, attempts=2))
    older = claim(claim_id="claim-2", redrives=redrives, attempts=attempts)
    assert await ledger.jobs.claim(older) == Superseded(redrives=1, attempts=2)


@pytest.mark.parametrize("worker_id", ["worker-1", "worker-2"])
async def test_a_running_job_is_held(ledger: Ledger, worker_id: str) -> None:
    await ledger.jobs.claim(claim())
    second_claim = claim(claim_id="claim-2", worker_id=worker_id)
    assert await ledger.jobs.claim(second_claim) == HeldByWorker("worker-1", "claim-1")


async def test_the_same_claim_again_is_the_same_claim(ledger: Ledger) -> None:
    assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
    assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.timeline == ()


async def test_a_takeover_counts_a_crash_and_records_the_lost_attempt(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    takeover = claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    assert await ledger.jobs.claim(takeover) == Claimed(crashes=1, unended=1)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.worker_id, record.crashes) == ("worker-2", 1)
    (lost,) = record.timeline
    assert (lost.outcome, lost.worker_id, lost.attempt) == ("crashed", "worker-1", 1)
    assert lost.started_at == pytest.approx(NOW + 10)


async def test_a_suspect_is_queued_until_a_claim_does_not_defer_it(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    deferring = replace(claim(claim_id="claim-2", worker_id="worker-2"), defers_suspects=True)
    assert await ledger.jobs.claim(deferring) == HeldByWorker("worker-1", "claim-1")
    takeover = replace(deferring, takeover_from="claim-1")
    for request in (takeover, deferring, deferring):
        assert await ledger.jobs.claim(request) == Suspect(crashes=1)
        record = await ledger.job_reads.get("job-1")
        assert record is not None
        assert (record.state, record.crashes, record.worker_id) == (State.QUEUED, 1, None)
        assert [attempt.outcome for attempt in record.timeline] == ["crashed"]
    undeferred = replace(deferring, defers_suspects=False)
    assert await ledger.jobs.claim(undeferred) == Claimed(crashes=1, unended=1)
    assert await ledger.jobs.claim(deferring) == Claimed(
        crashes=1, unended=1
    )  # the same claim, repeated


async def test_a_suspect_that_was_cancelled_is_not_queued_again(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.cancel("job-1", NOW)
    takeover = claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    answer = await ledger.jobs.claim(replace(takeover, defers_suspects=True))
    assert answer == Finished(State.CANCELLED)


async def test_a_takeover_from_a_claim_that_is_gone_is_refused(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.claim(
        claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    )
    late = claim(claim_id="claim-3", worker_id="worker-3", takeover_from="claim-1")
    assert await ledger.jobs.claim(late) == HeldByWorker("worker-2", "claim-2")


async def test_crashes_add_up_over_retries_and_are_forgotten_by_a_redrive(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.claim(claim(claim_id="c2", takeover_from="claim-1"))
    assert await ledger.jobs.claim(claim(claim_id="c3", takeover_from="c2")) == Claimed(
        crashes=2, unended=2
    )
    await ledger.jobs.finish(finish(State.DEAD, "c3", reason="crashed"))
    await record_redrive(ledger, 1)
    assert await ledger.jobs.claim(claim(claim_id="c4", redrives=1)) == Claimed(crashes=0)


async def test_of_fifty_concurrent_claims_exactly_one_gets_the_job(ledger: Ledger) -> None:
    requests = [claim(claim_id=f"c{n}", worker_id=f"w{n}") for n in range(50)]
    answers = await asyncio.gather(*(ledger.jobs.claim(request) for request in requests))
    (owner,) = [n for n, answer in enumerate(answers) if isinstance(answer, Claimed)]
    others = {answer for answer in answers if not isinstance(answer, Claimed)}
    assert others == {HeldByWorker(f"w{owner}", f"c{owner}")}


async def test_of_fifty_concurrent_takeovers_exactly_one_gets_the_job(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim(claim_id="lost"))
    requests = [claim(claim_id=f"c{n}", takeover_from="lost") for n in range(50)]
    answers = await asyncio.gather(*(ledger.jobs.claim(request) for request in requests))
    assert [answer for answer in answers if isinstance(answer, Claimed)] == [
        Claimed(crashes=1, unended=1)
    ]
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert len(record.timeline) == 1


async def test_a_claim_after_the_dead_letter_was_seen_is_finished(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    await ledger.dead_letters.index_dead([letter(reason="expired")])
    assert await ledger.jobs.claim(claim()) == Finished(State.DEAD)


@pytest.mark.parametrize(
    ("copy_fields", "accepted"),
    [
        ({"attempts": 900}, {}),
        ({"attempts": 900, "redrives": 0, "max_attempts": 1000}, {}),
        ({"attempts": 1, "max_attempts": 1}, {}),
        ({"attempts": 1, "expires_at": to_datetime(NOW - 9)}, {}),
        ({"attempts": 1, "queued_at": to_datetime(NOW - 9e6)}, {"queued_at": to_datetime(NOW - 5)}),
        ({"attempts": 1, "source": "me", "pipeline": "yours", "operation_id": "yours"}, {}),
        ({"attempts": 1, "parent_id": "yours"}, {}),
    ],
    ids=lambda value: "-".join(value),
)
async def test_what_a_copy_says_of_itself_counts_only_where_the_record_agrees(
    ledger: Ledger, copy_fields: dict[str, Any], accepted: dict[str, Any]
) -> None:
    recorded = message(source="user", expires_at=to_datetime(NOW + 900), pipeline="mine")
    await ledger.jobs.record(new_job(recorded))
    await ledger.jobs.mark_queued(["job-1"], NOW - 5)
    await ledger.jobs.claim(claim(recorded))
    await ledger.jobs.finish(finish(State.RETRYING, outcome=AttemptOutcome.RETRY))
    before = await ledger.job_reads.get("job-1")
    answer = await ledger.jobs.claim(claim(message(**copy_fields), "claim-2"))
    assert isinstance(answer, Claimed)
    assert answer.message is not None
    agreed = answer.message.metadata.model_dump(exclude={"created_at"})
    expected = recorded.with_metadata(attempts=1, **accepted).metadata
    if "queued_at" in copy_fields:
        agreed["queued_at"] = to_datetime(round(agreed["queued_at"].timestamp(), 3))
    assert agreed == expected.model_dump(exclude={"created_at"})
    after = await ledger.job_reads.get("job-1")
    assert before is not None
    assert after is not None
    for name in ("redrives", "attempts", "max_attempts", "expires_at", "source", "operation_id"):
        assert getattr(after, name) == getattr(before, name), name


async def test_a_retry_counts_although_its_worker_died_before_recording_it(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    takeover = claim(claim_id="claim-2", attempts=1, takeover_from="claim-1")
    assert await ledger.jobs.claim(takeover) == Claimed(crashes=1, unended=1)
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.attempts == 1
