"""Joins: a job that waits is let go once, when the last of those that it waits for has ended."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.job_operations import JOBS_PER_TURN, prepare_inserts
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.joins import Joining, WhenDead
from switchyard.services.engine.records.requests import NewJob, RedrivenCopy
from switchyard.services.engine.records.results import (
    Cancelled,
    Claimed,
    Created,
    Existing,
    StillJoining,
)
from switchyard.services.engine.records.states import State
from tests.support.made import NOW, claim, finish, let_out, letter, new_job
from tests.support.turns import turns_during

THEN = "then"


def joined(
    number: int, *, when_dead: WhenDead = "wait", then: str = THEN, held: bool = False
) -> list[NewJob]:
    """Jobs `then-0`, `then-1`, … and the one that waits for them."""
    jobs = [new_job(f"{then}-{each}", join_id=then) for each in range(number)]
    return [*jobs, new_job(then, joins=Joining(when_dead, held))]


async def run(
    ledger: Ledger, job_id: str, state: State = State.SUCCEEDED, **changes: Any
) -> list[str]:
    """Claim the job and end it; the jobs that are due now."""
    redrives = changes.pop("redrives", 0)
    claim_id = f"{job_id}/{redrives}"
    if redrives:
        await let_out(ledger, redrives, job_id)
    claimed = await ledger.jobs.claim(claim(job_id, claim_id, redrives=redrives))
    assert isinstance(claimed, Claimed), claimed
    noted = await ledger.jobs.finish(finish(state, claim_id, job_id=job_id, **changes))
    assert noted is not None
    return noted.due


async def state_of(ledger: Ledger, job_id: str = THEN) -> State:
    return (await ledger.job_reads.states([job_id]))[job_id]


async def counts(ledger: Ledger, join_id: str = THEN) -> tuple[int, int, int, int]:
    """Total, open, dead, cancelled."""
    join = await ledger.joins.join(join_id)
    assert join is not None
    return join.total, join.open, join.dead, join.cancelled


async def test_many_jobs_are_encoded_while_others_run() -> None:
    inserts, turns = await turns_during(prepare_inserts(joined(99)))
    assert len(inserts) == 100
    assert turns >= 100 // JOBS_PER_TURN


async def test_the_last_end_lets_the_job_that_waits_go_and_no_other_end_does(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(joined(3))
    assert [await run(ledger, f"then-{each}") for each in range(3)] == [[], [], [THEN]]
    assert await state_of(ledger) is State.PENDING
    assert await counts(ledger) == (3, 0, 0, 0)


async def test_the_scheduler_finds_it_where_its_worker_died_at_that_moment(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    assert await ledger.job_reads.due_pending(NOW + 1e6, 10) == [
        await ledger.job_reads.get("then-0")
    ]
    await run(ledger, "then-0")
    (due,) = await ledger.job_reads.due_pending(NOW + 1e6, 10)
    assert due.id == THEN


async def test_the_same_end_twice_counts_once(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(2))
    await run(ledger, "then-0")
    again = await ledger.jobs.finish(finish(claim_id="then-0/0", job_id="then-0"))
    assert again is not None
    assert await counts(ledger) == (2, 1, 0, 0)
    assert await state_of(ledger) is State.JOINING


async def test_the_end_of_a_claim_that_was_taken_over_does_not_count(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    await ledger.jobs.claim(claim("then-0", "first"))
    await ledger.jobs.claim(claim("then-0", "second", takeover_from="first"))
    assert await ledger.jobs.finish(finish(claim_id="first", job_id="then-0")) is None
    assert await state_of(ledger) is State.JOINING
    assert await ledger.jobs.finish(finish(claim_id="second", job_id="then-0"))
    assert await state_of(ledger) is State.PENDING


async def test_a_retry_and_a_worker_that_stops_end_nothing(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    await ledger.jobs.claim(claim("then-0", "first"))
    await ledger.jobs.finish(finish(State.RETRYING, "first", job_id="then-0"))
    await ledger.jobs.claim(claim("then-0", "second", attempts=1))
    await ledger.jobs.release_all("worker-1", NOW)
    assert await counts(ledger) == (1, 1, 0, 0)
    assert await state_of(ledger) is State.JOINING


async def test_what_follows_from_a_joined_job_is_waited_for(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    claimed = await ledger.jobs.claim(claim("then-0", "c"))
    assert claimed == Claimed(0, join_id=THEN)
    await ledger.jobs.record_many([new_job("child", join_id=THEN)])
    await ledger.jobs.finish(finish(claim_id="c", job_id="then-0"))
    assert await state_of(ledger) is State.JOINING
    assert await run(ledger, "child") == [THEN]


async def test_repeating_the_record_changes_nothing(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(2))
    await run(ledger, "then-0")
    again = await ledger.joins.record_joined(joined(2))
    assert again == [
        Existing("then-0", State.SUCCEEDED),
        Existing("then-1", State.PENDING),
        Existing(THEN, State.JOINING),
    ]
    assert await counts(ledger) == (2, 1, 0, 0)


async def test_all_or_nothing_is_recorded(ledger: Ledger) -> None:
    jobs = joined(2)
    with pytest.raises(RowRejected):
        await ledger.joins.record_joined([jobs[0], jobs[1], replace(jobs[2], lane=None)])  # type: ignore[arg-type]
    assert await ledger.job_reads.states(["then-0", "then-1", THEN]) == {}
    assert await ledger.joins.join(THEN) is None


async def test_a_join_whose_jobs_have_all_ended_before_is_due_at_once(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("then-0")])
    await run(ledger, "then-0")
    await ledger.joins.record_joined(joined(1))
    assert await state_of(ledger) is State.PENDING


async def test_a_message_that_comes_too_early_is_skipped(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    assert await ledger.jobs.claim(claim(THEN)) == StillJoining()
    await ledger.dead_letters.index_dead([letter(THEN, "expired")])
    await ledger.jobs.mark_queued([THEN], NOW)
    assert not await ledger.jobs.mark_overflowed(THEN, NOW)
    assert await state_of(ledger) is State.JOINING


# --- dead, cancelled, expired -----------------------------------------------------------------


async def test_a_dead_job_is_waited_for_until_it_was_redriven_and_has_succeeded(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(joined(2))
    await run(ledger, "then-0", State.DEAD, reason="exhausted")
    assert await run(ledger, "then-1") == []
    assert await counts(ledger) == (2, 0, 1, 0)
    (stuck,) = await ledger.joins.stuck_joins(10)
    assert stuck.id == THEN
    assert stuck.is_stuck
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await counts(ledger) == (2, 1, 0, 0)
    assert await ledger.joins.stuck_joins(10) == []
    assert await run(ledger, "then-0", redrives=1) == [THEN]


async def test_a_redriven_copy_that_a_worker_claims_first_counts_as_well(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    await run(ledger, "then-0", State.DEAD)
    assert await run(ledger, "then-0", redrives=1) == [THEN]
    assert await counts(ledger) == (1, 0, 0, 0)


async def test_it_goes_on_without_the_dead_where_it_was_told_to(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(2, when_dead="go_on"))
    await run(ledger, "then-0", State.DEAD, error_type="Broken", error_message="no page")
    assert await run(ledger, "then-1", result={"page": 1}) == [THEN]
    jobs, place = await ledger.joins.joined_jobs(THEN, limit=10)
    assert place is None
    assert [(each.job_id, each.state, each.result, each.error_message) for each in jobs] == [
        ("then-0", State.DEAD, None, "no page"),
        ("then-1", State.SUCCEEDED, {"page": 1}, None),
    ]


async def test_where_it_says_again_each_new_end_makes_a_job_like_the_one_that_waited(
    ledger: Ledger,
) -> None:
    then = replace(new_job(THEN, joins=Joining("go_on", again=True)), routing_key="hot.told")
    await ledger.joins.record_joined([*joined(2)[:2], then])
    await run(ledger, "then-1")
    assert await run(ledger, "then-0", State.DEAD) == [THEN]
    await run(ledger, THEN)
    copies = []
    for redrive, end in enumerate((State.DEAD, State.SUCCEEDED), 1):
        await ledger.redrives.record_redriven([RedrivenCopy("then-0", redrive)], NOW)
        copies += await run(ledger, "then-0", end, redrives=redrive)
    assert len({THEN, *copies}) == 3
    first = await ledger.job_reads.get(THEN)
    for copy in copies:
        made = await ledger.job_reads.get(copy)
        assert made is not None
        assert first is not None
        assert (made.state, made.payload, made.routing_key) == (
            State.PENDING,
            first.payload,
            "hot.told",
        )
        assert await run(ledger, copy) == []
    assert await counts(ledger) == (2, 0, 0, 0)


async def test_one_that_was_called_off_is_not_made_again(ledger: Ledger) -> None:
    await ledger.joins.record_joined(
        [*joined(1)[:1], new_job(THEN, joins=Joining("go_on", again=True))]
    )
    await ledger.jobs.cancel(THEN, NOW)
    await run(ledger, "then-0", State.DEAD)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await run(ledger, "then-0", redrives=1) == []


async def test_a_redrive_after_it_went_on_publishes_it_no_second_time(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, when_dead="go_on"))
    assert await run(ledger, "then-0", State.DEAD) == [THEN]
    await run(ledger, THEN)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await run(ledger, "then-0", redrives=1) == []
    assert await state_of(ledger) is State.SUCCEEDED
    assert await counts(ledger) == (1, 0, 0, 0)


async def test_it_may_fail_with_the_dead_and_run_when_both_were_redriven(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, when_dead="fail"))
    assert await run(ledger, "then-0", State.DEAD) == [THEN]
    assert await ledger.jobs.claim(claim(THEN, "c")) == Claimed(0, joins=True)
    assert await counts(ledger) == (1, 0, 1, 0)  # with which its worker makes it dead
    await ledger.jobs.finish(finish(State.DEAD, "c", job_id=THEN))
    assert await run(ledger, "then-0", redrives=1) == []
    await let_out(ledger, 1, THEN)
    assert await ledger.jobs.claim(claim(THEN, "d", redrives=1)) == Claimed(0, joins=True)
    assert await counts(ledger) == (1, 0, 0, 0)


@pytest.mark.parametrize("reason", ["expired", "overflowed", "unroutable"])
async def test_what_the_broker_gave_up_counts_as_dead(ledger: Ledger, reason: str) -> None:
    await ledger.joins.record_joined(joined(2, when_dead="go_on"))
    await ledger.jobs.mark_queued(["then-0", "then-1"], NOW)
    await run(ledger, "then-0")
    await ledger.dead_letters.index_dead([letter("then-1", reason)])
    await ledger.dead_letters.index_dead([letter("then-1", reason)])  # a second letter of one death
    assert await counts(ledger) == (2, 0, 1, 0)
    assert await state_of(ledger) is State.PENDING


async def test_a_job_that_found_its_lane_full_counts_as_dead(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, when_dead="go_on"))
    await ledger.jobs.mark_overflowed("then-0", NOW)
    assert await state_of(ledger) is State.PENDING


async def test_a_cancelled_job_has_ended(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(2))
    await run(ledger, "then-0")
    assert await ledger.jobs.cancel("then-1", NOW) == Cancelled()
    assert await counts(ledger) == (2, 0, 0, 1)
    assert await state_of(ledger) is State.PENDING


async def test_a_job_that_waits_may_be_called_off_and_stays_so(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    assert await ledger.jobs.cancel(THEN, NOW) == Cancelled()
    assert await run(ledger, "then-0") == []
    assert await state_of(ledger) is State.CANCELLED


async def test_a_redrive_that_is_taken_back_is_a_death_again(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    await run(ledger, "then-0", State.DEAD)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    record = new_job("then-0", now=NOW + 40)
    from switchyard.services.engine.ledger.sql.dead_letter_ops import UndoRedrive

    undone = UndoRedrive(record, 1, "exhausted")
    assert await ledger.core.database.write(lambda c: ledger.core.writer.run(c, [undone])) == [True]
    assert await counts(ledger) == (1, 0, 1, 0)


async def test_a_joined_job_whose_record_is_taken_back_is_waited_for_no_longer(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(joined(0, held=True))
    (made,) = await ledger.jobs.record_many([new_job("one", join_id=THEN)])
    assert isinstance(made, Created)
    assert await counts(ledger) == (1, 1, 0, 0)
    assert await ledger.jobs.rollback_inserts([made]) == [None]
    assert await counts(ledger) == (0, 0, 0, 0)


# --- held, released ---------------------------------------------------------------------------


async def test_a_join_that_is_held_waits_until_it_is_released(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, held=True))
    assert await run(ledger, "then-0") == []
    assert await ledger.joins.seal(THEN, NOW)
    assert await state_of(ledger) is State.PENDING
    assert await ledger.joins.seal(THEN, NOW) is None


async def test_a_released_join_waits_for_what_has_not_ended(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, held=True))
    assert await ledger.joins.seal(THEN, NOW) is False
    assert await run(ledger, "then-0") == [THEN]


async def test_one_that_waits_for_the_dead_may_be_told_to_go_on(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1))
    await run(ledger, "then-0", State.DEAD)
    assert await ledger.joins.seal(THEN, NOW) is False
    assert await ledger.joins.seal(THEN, NOW, when_dead="go_on")
    assert await state_of(ledger) is State.PENDING
    assert await ledger.joins.seal("nothing", NOW) is None


# --- nested -----------------------------------------------------------------------------------


async def test_joins_within_joins_end_from_the_inside(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(1, then="outer"))
    for inner, outer in (("middle", "outer"), ("inner", "middle")):
        *jobs, then = joined(2, then=inner)
        claimed = await ledger.jobs.claim(claim(f"{outer}-0", "c"))
        assert claimed == Claimed(0, join_id=outer)
        await ledger.joins.record_joined([*jobs, replace(then, join_id=outer)])
        await ledger.jobs.finish(finish(claim_id="c", job_id=f"{outer}-0"))
    assert await run(ledger, "middle-1") == []
    assert [await run(ledger, f"inner-{each}") for each in range(2)] == [[], ["inner"]]
    assert await state_of(ledger, "middle") is State.JOINING
    assert await run(ledger, "inner") == ["middle"]
    assert await state_of(ledger, "outer") is State.JOINING
    assert await run(ledger, "middle") == ["outer"]


# --- cost, and many at once -------------------------------------------------------------------


async def test_jobs_without_a_join_cost_no_statement_more(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("alone")])
    said: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        said.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await ledger.jobs.claim(claim("alone", "c"))
        claimed, said[:] = _changes(said), []
        await ledger.jobs.finish(finish(claim_id="c", job_id="alone"))
        finished, said[:] = _changes(said), []
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert claimed == ["SELECT", "SELECT", "UPDATE"]  # the pauses, then the job
    assert finished == ["SELECT", "UPDATE"]


def _changes(statements: Sequence[str]) -> list[str]:
    return [each for each in statements if each not in ("BEGIN", "PRAGMA", "SHOW", "COMMIT")]


async def test_joined_jobs_are_read_page_by_page_in_their_order(ledger: Ledger) -> None:
    await ledger.joins.record_joined(joined(25))
    found: list[str] = []
    after = None
    while True:
        jobs, after = await ledger.joins.joined_jobs(THEN, after=after, limit=10)
        found += [each.job_id for each in jobs]
        if after is None:
            break
    assert len(found) == len(set(found)) == 25
    dead, _ = await ledger.joins.joined_jobs(THEN, state=State.DEAD, limit=10)
    assert dead == []


async def test_a_thousand_ends_at_once_in_four_processes_let_it_go_once(database_url: str) -> None:
    """And nobody waits for anybody in a circle: PostgreSQL counts no deadlock."""
    async with AsyncExitStack() as stack:
        ledgers = [
            await stack.enter_async_context(await Ledger.open(database_url)) for _ in range(4)
        ]
        outer = [new_job(f"outer-{n}", join_id="outer") for n in range(500)]
        await ledgers[0].joins.record_joined(joined(500))
        await ledgers[0].joins.record_joined([*outer, new_job("outer", joins=Joining("go_on"))])
        ids = [f"{kind}-{n}" for n in range(500) for kind in ("then", "outer")]

        async def end(number: int, job_id: str) -> list[str]:
            ledger = ledgers[number % 4]
            due = await run(ledger, job_id, State.DEAD if number % 50 == 49 else State.SUCCEEDED)
            if number % 50 == 49:
                await ledger.redrives.record_redriven([RedrivenCopy(job_id, 1)], NOW)
                due += await run(ledger, job_id, redrives=1)
            return due

        due = await asyncio.gather(*(end(number, each) for number, each in enumerate(ids)))
        assert sorted(each for some in due for each in some) == ["outer", THEN]
        assert await counts(ledgers[0]) == (500, 0, 0, 0)
        if ledgers[0].core.database.dialect == "postgresql":
            query = text(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            )
            assert await ledgers[0].core.database.read(lambda c: c.scalar(query)) == 0
