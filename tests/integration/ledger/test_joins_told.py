"""Joins: who ends the last job that another waits for is told of that one, and publishes it."""

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, letter, new_job


@pytest.fixture
async def claimed(ledger: Ledger) -> Ledger:
    """Of two jobs that `then` waits for one has ended, and the other runs."""
    jobs = [new_job(each, join_id="then") for each in ("first", "last")]
    await ledger.joins.record_joined([*jobs, new_job("then", joins=Joining("go_on"))])
    for each in ("first", "last"):
        await ledger.jobs.claim(claim(each, f"claim of {each}"))
    noted = await ledger.jobs.finish(finish(claim_id="claim of first", job_id="first"))
    assert noted is not None
    assert noted.due == []
    return ledger


async def test_a_worker_whose_dead_letter_was_read_before_it_says_so_is_told(
    claimed: Ledger,
) -> None:
    await claimed.dead_letters.index_dead([letter("last", dead_at=NOW)])
    assert await claimed.job_reads.states(["last", "then"]) == {
        "last": State.DEAD,
        "then": State.PENDING,
    }
    noted = await claimed.jobs.finish(finish(State.DEAD, "claim of last", job_id="last"))
    assert noted is not None
    assert noted.due == ["then"]


async def test_a_worker_whose_first_answer_was_lost_is_told_again_until_it_is_published(
    claimed: Ledger,
) -> None:
    end = finish(claim_id="claim of last", job_id="last")
    told = [await claimed.jobs.finish(end), await claimed.jobs.finish(end)]
    assert [noted and noted.due for noted in told] == [["then"], ["then"]]
    await claimed.jobs.mark_queued(["then"], NOW)
    noted = await claimed.jobs.finish(end)
    assert noted is not None
    assert noted.due == []
