"""Only who made a record may take it back, and only while nobody else relies on it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.results import Created, Existing
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, message, new_job


@pytest.fixture
async def other_ledger(ledger: Ledger, database_url: str) -> AsyncIterator[Ledger]:
    """The same ledger, opened by another process."""
    async with await Ledger.open(database_url) as opened:
        yield opened


async def record_job(ledger: Ledger, job_id: str = "job-1", **changes: object) -> Created:
    created = await ledger.jobs.record(new_job(job_id, **changes))
    assert isinstance(created, Created)
    return created


async def test_a_refused_job_can_be_taken_back_by_its_recorder(ledger: Ledger) -> None:
    created = await record_job(ledger)
    assert await ledger.jobs.rollback_inserts([created]) == [None]
    assert await ledger.job_reads.get("job-1") is None
    assert await ledger.jobs.rollback_inserts([created]) == [None]


async def test_a_job_that_another_request_was_answered_with_is_kept(
    ledger: Ledger, other_ledger: Ledger
) -> None:
    first = await record_job(ledger, idempotency_key="k")
    repeated = new_job(message("job-2"), idempotency_key="k")
    assert await other_ledger.jobs.record(repeated) == Existing("job-1", State.PENDING)
    assert await ledger.jobs.rollback_inserts([first]) == [State.PENDING]
    assert await other_ledger.jobs.rollback_inserts([Created("job-1", "")]) == [State.PENDING]
    await ledger.jobs.mark_queued(["job-1"], NOW)
    assert await ledger.job_reads.states(["job-1"]) == {"job-1": State.QUEUED}


async def test_a_result_takes_back_only_the_record_that_it_is_of(ledger: Ledger) -> None:
    first = await record_job(ledger)
    await ledger.jobs.rollback_inserts([first])
    second = await record_job(ledger)
    assert await ledger.jobs.rollback_inserts([first]) == [State.PENDING]
    assert await ledger.jobs.rollback_inserts([second]) == [None]


async def test_a_pinned_job_is_kept(ledger: Ledger) -> None:
    first, second = await record_job(ledger), await record_job(ledger, "job-2")
    assert await ledger.jobs.pin(["job-1", "nobody"]) == {"job-1": State.PENDING}
    assert await ledger.jobs.rollback_inserts([first, second]) == [State.PENDING, None]
    assert await ledger.jobs.pin(["job-2"]) == {}


async def test_a_job_that_is_no_longer_pending_is_kept(ledger: Ledger) -> None:
    running, queued = await record_job(ledger), await record_job(ledger, "job-2")
    cancelled, scheduled = (
        await record_job(ledger, "job-3"),
        await record_job(ledger, "job-4", run_at=NOW),
    )
    await ledger.jobs.claim(claim())
    await ledger.jobs.mark_queued(["job-2"], NOW)
    await ledger.jobs.cancel("job-3", NOW)
    assert await ledger.jobs.rollback_inserts([running, queued, cancelled, scheduled]) == [
        State.RUNNING,
        State.QUEUED,
        State.CANCELLED,
        State.SCHEDULED,
    ]


async def test_one_job_twice_in_a_batch_is_kept_for_the_second(ledger: Ledger) -> None:
    first, second = await ledger.jobs.record_many([new_job(), new_job()])
    assert isinstance(first, Created)
    assert second == Existing("job-1", State.PENDING)
    assert await ledger.jobs.rollback_inserts([first]) == [State.PENDING]


async def test_a_record_whose_commit_was_repeated_can_still_be_taken_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ledger.core.committer._commit

    async def commit_twice(operations):
        await commit(operations)
        return await commit(operations)

    monkeypatch.setattr(ledger.core.committer, "_commit", commit_twice)
    created = await record_job(ledger)
    assert await ledger.jobs.rollback_inserts([created]) == [None]


async def test_concurrent_requests_lose_no_job_that_one_was_answered_with(
    ledger: Ledger, other_ledger: Ledger
) -> None:
    """All record the same jobs, and take them back as if the broker refused them. In every order, a
    job with which a request was answered is there in the end."""
    ids = [f"job-{number}" for number in range(40)]
    answered_ids: set[str] = set()
    removed_ids: set[str] = set()

    async def request(own_ledger: Ledger, job_id: str) -> None:
        answer = await own_ledger.jobs.record(new_job(job_id, idempotency_key=f"k-{job_id}"))
        if isinstance(answer, Existing):
            answered_ids.add(job_id)
        elif await own_ledger.jobs.rollback_inserts([answer]) == [None]:
            removed_ids.add(job_id)
        else:
            answered_ids.add(job_id)

    for _ in range(3):
        requests = (
            request(own_ledger, job_id)
            for job_id in ids
            for own_ledger in (ledger, other_ledger, ledger)
        )
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            assert outcome is None or isinstance(outcome, LedgerUnavailable)
    states = await ledger.job_reads.states(ids)
    assert set(states.values()) <= {State.PENDING}
    assert answered_ids <= set(states)
    assert answered_ids
