"""A record is taken back by whoever made it, and only while nobody else relies on it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.results import Created, Existing
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, message, new_job


@pytest.fixture
async def other(ledger: Ledger, database_url: str) -> AsyncIterator[Ledger]:
    """The same ledger, as another process sees it."""
    async with await Ledger.open(database_url) as opened:
        yield opened


async def made(ledger: Ledger, job_id: str = "job-1", **changes: object) -> Created:
    created = await ledger.jobs.record(new_job(job_id, **changes))
    assert isinstance(created, Created)
    return created


async def test_a_refused_job_is_taken_back_by_who_recorded_it(ledger: Ledger) -> None:
    created = await made(ledger)
    assert await ledger.jobs.rollback_inserts([created]) == [None]
    assert await ledger.job_reads.get("job-1") is None
    assert await ledger.jobs.rollback_inserts([created]) == [None]


async def test_what_another_request_found_is_kept_by_both(ledger: Ledger, other: Ledger) -> None:
    first = await made(ledger, idempotency_key="k")
    again = new_job(message("job-2"), idempotency_key="k")
    assert await other.jobs.record(again) == Existing("job-1", State.PENDING)
    assert await ledger.jobs.rollback_inserts([first]) == [State.PENDING]
    assert await other.jobs.rollback_inserts([Created("job-1", "")]) == [State.PENDING]
    await ledger.jobs.mark_queued(["job-1"], NOW)
    assert await ledger.job_reads.states(["job-1"]) == {"job-1": State.QUEUED}


async def test_a_receipt_is_of_one_recording_only(ledger: Ledger) -> None:
    first = await made(ledger)
    await ledger.jobs.rollback_inserts([first])
    second = await made(ledger)
    assert await ledger.jobs.rollback_inserts([first]) == [State.PENDING]
    assert await ledger.jobs.rollback_inserts([second]) == [None]


async def test_what_somebody_relies_on_is_kept(ledger: Ledger) -> None:
    first, second = await made(ledger), await made(ledger, "job-2")
    assert await ledger.jobs.pin(["job-1", "nobody"]) == {"job-1": State.PENDING}
    assert await ledger.jobs.rollback_inserts([first, second]) == [State.PENDING, None]
    assert await ledger.jobs.pin(["job-2"]) == {}


async def test_a_job_that_has_gone_on_is_kept(ledger: Ledger) -> None:
    running, queued = await made(ledger), await made(ledger, "job-2")
    cancelled, scheduled = await made(ledger, "job-3"), await made(ledger, "job-4", run_at=NOW)
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


async def test_a_record_that_is_written_again_after_a_lost_answer_is_its_makers_still(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ledger.core.committer._commit

    async def twice(operations):
        await commit(operations)
        return await commit(operations)

    monkeypatch.setattr(ledger.core.committer, "_commit", twice)
    created = await made(ledger)
    assert await ledger.jobs.rollback_inserts([created]) == [None]


async def test_of_requests_at_the_same_time_none_loses_what_it_was_told_of(
    ledger: Ledger, other: Ledger
) -> None:
    """Each records the same jobs and is refused by the broker at once; in every order, who was not
    the first has been told of a job that is there in the end."""
    ids = [f"job-{number}" for number in range(40)]
    told: set[str] = set()
    gone: set[str] = set()

    async def request(mine: Ledger, job_id: str) -> None:
        answer = await mine.jobs.record(new_job(job_id, idempotency_key=f"k-{job_id}"))
        if isinstance(answer, Existing):
            told.add(job_id)
        elif await mine.jobs.rollback_inserts([answer]) == [None]:
            gone.add(job_id)
        else:
            told.add(job_id)

    for _ in range(3):
        turns = (request(mine, job_id) for job_id in ids for mine in (ledger, other, ledger))
        for outcome in await asyncio.gather(*turns, return_exceptions=True):
            assert outcome is None or isinstance(outcome, LedgerUnavailable)
    kept = await ledger.job_reads.states(ids)
    assert set(kept.values()) <= {State.PENDING}
    assert told <= set(kept)
    assert told
