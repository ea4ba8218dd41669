"""Joins: the worker that ends the last joined job is told which job is due, to publish it."""

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, letter, new_job


@pytest.fixture
async def joined_ledger(ledger: Ledger) -> Ledger:
    """A ledger in which `then` waits for two jobs: `first` has ended, `last` runs."""
    jobs = [new_job(job_id, join_id="then") for job_id in ("first", "last")]
    await ledger.joins.record_joined([*jobs, new_job("then", joins=Joining("go_on"))])
    for job_id in ("first", "last"):
        await ledger.jobs.claim(claim(job_id, f"claim of {job_id}"))
    answer = await ledger.jobs.finish(finish(claim_id="claim of first", job_id="first"))
    assert answer is not None
    assert answer.due == []
    return ledger


async def test_a_worker_is_told_although_its_dead_letter_was_indexed_before(
    joined_ledger: Ledger,
) -> None:
    await joined_ledger.dead_letters.index_dead([letter("last", dead_at=NOW)])
    assert await joined_ledger.job_reads.states(["last", "then"]) == {
        "last": State.DEAD,
        "then": State.PENDING,
    }
    answer = await joined_ledger.jobs.finish(finish(State.DEAD, "claim of last", job_id="last"))
    assert answer is not None
    assert answer.due == ["then"]


async def test_a_worker_that_repeats_its_end_is_told_again_until_the_job_is_published(
    joined_ledger: Ledger,
) -> None:
    end = finish(claim_id="claim of last", job_id="last")
    answers = [await joined_ledger.jobs.finish(end), await joined_ledger.jobs.finish(end)]
    assert [answer and answer.due for answer in answers] == [["then"], ["then"]]
    await joined_ledger.jobs.mark_queued(["then"], NOW)
    answer = await joined_ledger.jobs.finish(end)
    assert answer is not None
    assert answer.due == []
