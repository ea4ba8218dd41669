"""Joins: the waiting job becomes due once, when the last job it waits for has ended."""

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
from tests.support.made import NOW, claim, finish, letter, new_job, record_redrive
from tests.support.turns import turns_during

WAITING = "then"
"""The id of the waiting job, and of its join. It waits for the jobs `then-0`, `then-1`, …"""


def make_joined_jobs(
    number: int, *, when_dead: WhenDead = "wait", join_id: str = WAITING, held: bool = False
) -> list[NewJob]:
    """Return so many jobs of a join, and last the job that waits for them."""
    jobs = [new_job(f"{join_id}-{index}", join_id=join_id) for index in range(number)]
    return [*jobs, new_job(join_id, joins=Joining(when_dead, held))]


async def run_job(
    ledger: Ledger, job_id: str, state: State = State.SUCCEEDED, **changes: Any
) -> list[str]:
    """Claim the job and end it. Returns the ids of the jobs that are due now."""
    redrives = changes.pop("redrives", 0)
    claim_id = f"{job_id}/{redrives}"
    if redrives:
        await record_redrive(ledger, redrives, job_id)
    claimed = await ledger.jobs.claim(claim(job_id, claim_id, redrives=redrives))
    assert isinstance(claimed, Claimed), claimed
    answer = await ledger.jobs.finish(finish(state, claim_id, job_id=job_id, **changes))
    assert answer is not None
    return answer.due


async def state_of(ledger: Ledger, job_id: str = WAITING) -> State:
    return (await ledger.job_reads.states([job_id]))[job_id]


async def read_counts(ledger: Ledger, join_id: str = WAITING) -> tuple[int, int, int, int]:
    """Return how many jobs of the join there are: in all, open, dead, cancelled."""
    join = await ledger.joins.join(join_id)
    assert join is not None
    return join.total, join.open, join.dead, join.cancelled


async def test_many_jobs_are_encoded_while_others_run() -> None:
    inserts, turns = await turns_during(prepare_inserts(make_joined_jobs(99)))
    assert len(inserts) == 100
    assert turns >= 100 // JOBS_PER_TURN


async def test_only_the_last_end_makes_the_waiting_job_due(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(make_joined_jobs(3))
    assert [await run_job(ledger, f"then-{index}") for index in range(3)] == [[], [], [WAITING]]
    assert await state_of(ledger) is State.PENDING
    assert await read_counts(ledger) == (3, 0, 0, 0)


async def test_the_scheduler_finds_a_due_job_that_no_worker_has_published(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    assert await ledger.job_reads.due_pending(NOW + 1e6, 10) == [
        await ledger.job_reads.get("then-0")
    ]
    await run_job(ledger, "then-0")
    (due,) = await ledger.job_reads.due_pending(NOW + 1e6, 10)
    assert due.id == WAITING


async def test_the_same_end_twice_counts_once(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2))
    await run_job(ledger, "then-0")
    again = await ledger.jobs.finish(finish(claim_id="then-0/0", job_id="then-0"))
    assert again is not None
    assert await read_counts(ledger) == (2, 1, 0, 0)
    assert await state_of(ledger) is State.JOINING


async def test_the_end_of_a_claim_that_was_taken_over_does_not_count(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    await ledger.jobs.claim(claim("then-0", "first"))
    await ledger.jobs.claim(claim("then-0", "second", takeover_from="first"))
    assert await ledger.jobs.finish(finish(claim_id="first", job_id="then-0")) is None
    assert await state_of(ledger) is State.JOINING
    assert await ledger.jobs.finish(finish(claim_id="second", job_id="then-0"))
    assert await state_of(ledger) is State.PENDING


async def test_a_retry_and_a_worker_that_stops_end_nothing(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    await ledger.jobs.claim(claim("then-0", "first"))
    await ledger.jobs.finish(finish(State.RETRYING, "first", job_id="then-0"))
    await ledger.jobs.claim(claim("then-0", "second", attempts=1))
    await ledger.jobs.release_all("worker-1", NOW)
    assert await read_counts(ledger) == (1, 1, 0, 0)
    assert await state_of(ledger) is State.JOINING


async def test_a_job_that_follows_from_a_joined_job_is_waited_for(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    claimed = await ledger.jobs.claim(claim("then-0", "c"))
    assert claimed == Claimed(0, join_id=WAITING)
    await ledger.jobs.record_many([new_job("child", join_id=WAITING)])
    await ledger.jobs.finish(finish(claim_id="c", job_id="then-0"))
    assert await state_of(ledger) is State.JOINING
    assert await run_job(ledger, "child") == [WAITING]


async def test_repeating_the_record_changes_nothing(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2))
    await run_job(ledger, "then-0")
    again = await ledger.joins.record_joined(make_joined_jobs(2))
    assert again == [
        Existing("then-0", State.SUCCEEDED),
        Existing("then-1", State.PENDING),
        Existing(WAITING, State.JOINING),
    ]
    assert await read_counts(ledger) == (2, 1, 0, 0)


async def test_a_join_is_recorded_whole_or_not_at_all(ledger: Ledger) -> None:
    jobs = make_joined_jobs(2)
    with pytest.raises(RowRejected):
        await ledger.joins.record_joined([jobs[0], jobs[1], replace(jobs[2], lane=None)])  # type: ignore[arg-type]
    assert await ledger.job_reads.states(["then-0", "then-1", WAITING]) == {}
    assert await ledger.joins.join(WAITING) is None


async def test_a_join_whose_jobs_have_all_ended_before_is_due_at_once(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("then-0")])
    await run_job(ledger, "then-0")
    await ledger.joins.record_joined(make_joined_jobs(1))
    assert await state_of(ledger) is State.PENDING


async def test_a_message_of_the_waiting_job_that_comes_too_early_is_skipped(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    assert await ledger.jobs.claim(claim(WAITING)) == StillJoining()
    await ledger.dead_letters.index_dead([letter(WAITING, "expired")])
    await ledger.jobs.mark_queued([WAITING], NOW)
    assert not await ledger.jobs.mark_overflowed(WAITING, NOW)
    assert await state_of(ledger) is State.JOINING


# --- dead, cancelled, expired -----------------------------------------------------------------


async def test_a_dead_job_is_waited_for_until_it_was_redriven_and_has_succeeded(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2))
    await run_job(ledger, "then-0", State.DEAD, reason="exhausted")
    assert await run_job(ledger, "then-1") == []
    assert await read_counts(ledger) == (2, 0, 1, 0)
    (stuck,) = await ledger.joins.stuck_joins(10)
    assert stuck.id == WAITING
    assert stuck.is_stuck
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await read_counts(ledger) == (2, 1, 0, 0)
    assert await ledger.joins.stuck_joins(10) == []
    assert await run_job(ledger, "then-0", redrives=1) == [WAITING]


async def test_a_redriven_copy_that_a_worker_claims_first_counts_as_well(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    await run_job(ledger, "then-0", State.DEAD)
    assert await run_job(ledger, "then-0", redrives=1) == [WAITING]
    assert await read_counts(ledger) == (1, 0, 0, 0)


async def test_a_join_with_go_on_ends_without_the_dead_jobs(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2, when_dead="go_on"))
    await run_job(ledger, "then-0", State.DEAD, error_type="Broken", error_message="no page")
    assert await run_job(ledger, "then-1", result={"page": 1}) == [WAITING]
    jobs, after = await ledger.joins.joined_jobs(WAITING, limit=10)
    assert after is None
    assert [(job.job_id, job.state, job.result, job.error_message) for job in jobs] == [
        ("then-0", State.DEAD, None, "no page"),
        ("then-1", State.SUCCEEDED, {"page": 1}, None),
    ]


async def test_a_join_with_again_makes_a_copy_of_the_waiting_job_for_each_new_end(
    ledger: Ledger,
) -> None:
    waiting_job = replace(
        new_job(WAITING, joins=Joining("go_on", again=True)), routing_key="hot.told"
    )
    await ledger.joins.record_joined([*make_joined_jobs(2)[:2], waiting_job])
    await run_job(ledger, "then-1")
    assert await run_job(ledger, "then-0", State.DEAD) == [WAITING]
    await run_job(ledger, WAITING)
    copy_ids = []
    for redrive, end in enumerate((State.DEAD, State.SUCCEEDED), 1):
        await ledger.redrives.record_redriven([RedrivenCopy("then-0", redrive)], NOW)
        copy_ids += await run_job(ledger, "then-0", end, redrives=redrive)
    assert len({WAITING, *copy_ids}) == 3
    original = await ledger.job_reads.get(WAITING)
    for copy_id in copy_ids:
        copy = await ledger.job_reads.get(copy_id)
        assert copy is not None
        assert original is not None
        assert (copy.state, copy.payload, copy.routing_key) == (
            State.PENDING,
            original.payload,
            "hot.told",
        )
        assert await run_job(ledger, copy_id) == []
    assert await read_counts(ledger) == (2, 0, 0, 0)


async def test_no_copy_is_made_of_a_cancelled_waiting_job(ledger: Ledger) -> None:
    await ledger.joins.record_joined(
        [*make_joined_jobs(1)[:1], new_job(WAITING, joins=Joining("go_on", again=True))]
    )
    await ledger.jobs.cancel(WAITING, NOW)
    await run_job(ledger, "then-0", State.DEAD)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await run_job(ledger, "then-0", redrives=1) == []


async def test_a_redrive_after_the_waiting_job_ran_does_not_publish_it_again(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, when_dead="go_on"))
    assert await run_job(ledger, "then-0", State.DEAD) == [WAITING]
    await run_job(ledger, WAITING)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    assert await run_job(ledger, "then-0", redrives=1) == []
    assert await state_of(ledger) is State.SUCCEEDED
    assert await read_counts(ledger) == (1, 0, 0, 0)


async def test_a_join_with_fail_dies_with_its_job_and_runs_once_both_are_redriven(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, when_dead="fail"))
    assert await run_job(ledger, "then-0", State.DEAD) == [WAITING]
    assert await ledger.jobs.claim(claim(WAITING, "c")) == Claimed(0, joins=True)
    assert await read_counts(ledger) == (1, 0, 1, 0)  # so its worker makes it dead, too
    await ledger.jobs.finish(finish(State.DEAD, "c", job_id=WAITING))
    assert await run_job(ledger, "then-0", redrives=1) == []
    await record_redrive(ledger, 1, WAITING)
    assert await ledger.jobs.claim(claim(WAITING, "d", redrives=1)) == Claimed(0, joins=True)
    assert await read_counts(ledger) == (1, 0, 0, 0)


@pytest.mark.parametrize("reason", ["expired", "overflowed", "unroutable"])
async def test_a_job_that_the_broker_gave_up_counts_as_dead(ledger: Ledger, reason: str) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2, when_dead="go_on"))
    await ledger.jobs.mark_queued(["then-0", "then-1"], NOW)
    await run_job(ledger, "then-0")
    await ledger.dead_letters.index_dead([letter("then-1", reason)])
    await ledger.dead_letters.index_dead([letter("then-1", reason)])  # a second letter of one death
    assert await read_counts(ledger) == (2, 0, 1, 0)
    assert await state_of(ledger) is State.PENDING


async def test_a_job_whose_lane_was_full_counts_as_dead(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, when_dead="go_on"))
    await ledger.jobs.mark_overflowed("then-0", NOW)
    assert await state_of(ledger) is State.PENDING


async def test_a_cancelled_job_has_ended(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(2))
    await run_job(ledger, "then-0")
    assert await ledger.jobs.cancel("then-1", NOW) == Cancelled()
    assert await read_counts(ledger) == (2, 0, 0, 1)
    assert await state_of(ledger) is State.PENDING


async def test_a_waiting_job_may_be_cancelled_and_stays_cancelled(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    assert await ledger.jobs.cancel(WAITING, NOW) == Cancelled()
    assert await run_job(ledger, "then-0") == []
    assert await state_of(ledger) is State.CANCELLED


async def test_an_undone_redrive_counts_as_a_death_again(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    await run_job(ledger, "then-0", State.DEAD)
    await ledger.redrives.record_redriven([RedrivenCopy("then-0", 1)], NOW)
    record = new_job("then-0", now=NOW + 40)
    from switchyard.services.engine.ledger.sql.dead_letter_ops import UndoRedrive

    undone = UndoRedrive(record, 1, "exhausted")
    assert await ledger.core.database.write(lambda c: ledger.core.writer.run(c, [undone])) == [True]
    assert await read_counts(ledger) == (1, 0, 1, 0)


async def test_a_joined_job_whose_record_is_taken_back_is_waited_for_no_longer(
    ledger: Ledger,
) -> None:
    await ledger.joins.record_joined(make_joined_jobs(0, held=True))
    (answer,) = await ledger.jobs.record_many([new_job("one", join_id=WAITING)])
    assert isinstance(answer, Created)
    assert await read_counts(ledger) == (1, 1, 0, 0)
    assert await ledger.jobs.rollback_inserts([answer]) == [None]
    assert await read_counts(ledger) == (0, 0, 0, 0)


# --- held, released ---------------------------------------------------------------------------


async def test_a_join_that_is_held_waits_until_it_is_released(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, held=True))
    assert await run_job(ledger, "then-0") == []
    assert await ledger.joins.seal(WAITING, NOW)
    assert await state_of(ledger) is State.PENDING
    assert await ledger.joins.seal(WAITING, NOW) is None


async def test_a_released_join_waits_for_what_has_not_ended(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, held=True))
    assert await ledger.joins.seal(WAITING, NOW) is False
    assert await run_job(ledger, "then-0") == [WAITING]


async def test_a_join_that_waits_for_dead_jobs_may_be_told_to_go_on(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1))
    await run_job(ledger, "then-0", State.DEAD)
    assert await ledger.joins.seal(WAITING, NOW) is False
    assert await ledger.joins.seal(WAITING, NOW, when_dead="go_on")
    assert await state_of(ledger) is State.PENDING
    assert await ledger.joins.seal("nothing", NOW) is None


# --- nested -----------------------------------------------------------------------------------


async def test_joins_within_joins_end_from_the_inside(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(1, join_id="outer"))
    for inner, outer in (("middle", "outer"), ("inner", "middle")):
        *jobs, waiting_job = make_joined_jobs(2, join_id=inner)
        claimed = await ledger.jobs.claim(claim(f"{outer}-0", "c"))
        assert claimed == Claimed(0, join_id=outer)
        await ledger.joins.record_joined([*jobs, replace(waiting_job, join_id=outer)])
        await ledger.jobs.finish(finish(claim_id="c", job_id=f"{outer}-0"))
    assert await run_job(ledger, "middle-1") == []
    assert [await run_job(ledger, f"inner-{index}") for index in range(2)] == [[], ["inner"]]
    assert await state_of(ledger, "middle") is State.JOINING
    assert await run_job(ledger, "inner") == ["middle"]
    assert await state_of(ledger, "outer") is State.JOINING
    assert await run_job(ledger, "middle") == ["outer"]


# --- cost, and many at once -------------------------------------------------------------------


async def test_jobs_without_a_join_cost_no_extra_statement(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("alone")])
    statements: list[str] = []

    def record_statement(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", record_statement)
    try:
        await ledger.jobs.claim(claim("alone", "c"))
        claimed, statements[:] = _without_transactions(statements), []
        await ledger.jobs.finish(finish(claim_id="c", job_id="alone"))
        finished, statements[:] = _without_transactions(statements), []
    finally:
        event.remove(Engine, "before_cursor_execute", record_statement)
    assert claimed == ["SELECT", "SELECT", "UPDATE"]  # the pauses, then the job
    assert finished == ["SELECT", "UPDATE"]


def _without_transactions(statements: Sequence[str]) -> list[str]:
    return [
        statement
        for statement in statements
        if statement not in ("BEGIN", "PRAGMA", "SHOW", "COMMIT")
    ]


async def test_joined_jobs_are_read_page_by_page_in_their_order(ledger: Ledger) -> None:
    await ledger.joins.record_joined(make_joined_jobs(25))
    job_ids: list[str] = []
    after = None
    while True:
        jobs, after = await ledger.joins.joined_jobs(WAITING, after=after, limit=10)
        job_ids += [job.job_id for job in jobs]
        if after is None:
            break
    assert len(job_ids) == len(set(job_ids)) == 25
    dead, _ = await ledger.joins.joined_jobs(WAITING, state=State.DEAD, limit=10)
    assert dead == []


async def test_a_thousand_concurrent_ends_make_each_waiting_job_due_once(database_url: str) -> None:
    """Through four ledgers, as in four processes. PostgreSQL counts no deadlock."""
    async with AsyncExitStack() as stack:
        ledgers = [
            await stack.enter_async_context(await Ledger.open(database_url)) for _ in range(4)
        ]
        outer = [new_job(f"outer-{n}", join_id="outer") for n in range(500)]
        await ledgers[0].joins.record_joined(make_joined_jobs(500))
        await ledgers[0].joins.record_joined([*outer, new_job("outer", joins=Joining("go_on"))])
        ids = [f"{kind}-{n}" for n in range(500) for kind in ("then", "outer")]

        async def end(number: int, job_id: str) -> list[str]:
            ledger = ledgers[number % 4]
            dies_first = number % 50 == 49
            due = await run_job(ledger, job_id, State.DEAD if dies_first else State.SUCCEEDED)
            if dies_first:
                await ledger.redrives.record_redriven([RedrivenCopy(job_id, 1)], NOW)
                due += await run_job(ledger, job_id, redrives=1)
            return due

        due = await asyncio.gather(*(end(number, job_id) for number, job_id in enumerate(ids)))
        assert sorted(job_id for due_ids in due for job_id in due_ids) == ["outer", WAITING]
        assert await read_counts(ledgers[0]) == (500, 0, 0, 0)
        if ledgers[0].core.database.dialect == "postgresql":
            query = text(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            )
            assert await ledgers[0].core.database.read(lambda c: c.scalar(query)) == 0
