"""Named limits in the ledger: room is taken in one step, by one job more than there is at no time,
and comes back by itself from those who die."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from sqlalchemy import Connection, text

from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.ledger.sql.permit_batch import PermitBatch, PermitChange
from switchyard.services.engine.records.limits import (
    LimitSize,
    NotRunnable,
    PermitAnswer,
    PermitDemand,
    PermitGranted,
    PermitRefused,
    PermitReleased,
    PermitRequest,
    PermitReturn,
    rank_of,
)
from switchyard.services.engine.records.states import State
from tests.support.made import claim, finish, new_job
from tests.support.small_steps import removed
from tests.support.statements import statements

NUMBERS = count(1)
LIFE = 15.0
ONE = PermitDemand("openai", "", LimitSize(concurrency=1))


def request(
    job_id: str,
    *needs: PermitDemand,
    claimed: bool = False,
    large: bool = False,
    lane: str = "hot",
    priority: int = 5,
) -> PermitRequest:
    return PermitRequest(
        hold=f"hold-{next(NUMBERS)}",
        holder="worker-1",
        needs=needs or (ONE,),
        job_id=job_id,
        redrives=0,
        attempts=0,
        queue=f"{lane}.llm",
        rank=rank_of(lane, priority),
        body=None if large else job_id.encode(),
        levels=(5.0, 10.0, 20.0),
        expires_at=4_000_000_000.0,
        life=LIFE,
        claimed=claimed,
    )


async def take(ledger: Ledger, job_id: str, *needs: PermitDemand) -> PermitAnswer:
    return await ledger.limits.take_permits(request(job_id, *needs))


def called(answer: PermitAnswer | Sequence[object]) -> list[str]:
    found = answer if isinstance(answer, Sequence) else answer.woken
    return [each.job_id for each in found]  # type: ignore[attr-defined]


async def change(ledger: Ledger, statement: str) -> None:
    await ledger.core.database.write(
        lambda connection: connection.execute(text(statement)).rowcount
    )


async def test_no_more_jobs_than_may_have_room_whoever_asks(
    ledger: Ledger, database_url: str
) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=3))
    in_use = most = 0
    async with await Ledger.open(database_url) as other:

        async def work(each: Ledger, name: str) -> int:
            nonlocal in_use, most
            done = 0
            for number in range(20):
                asked = request(f"{name}-{number}", need)
                if isinstance(await each.limits.take_permits(asked), PermitGranted):
                    in_use += 1
                    most = max(most, in_use)
                    await asyncio.sleep(0)
                    in_use -= 1
                    done += 1
                    await each.limits.return_permits(asked.hold, asked.needs, None)
            return done

        workers = [work(each, f"{n}-{id(each)}") for each in (ledger, other) for n in range(4)]
        done = sum(await asyncio.gather(*workers))
    assert most <= 3
    assert done >= 3


async def test_room_goes_to_those_that_have_waited_longest(ledger: Ledger) -> None:
    first = request("first")
    assert isinstance(await ledger.limits.take_permits(first), PermitGranted)
    for name in ("second", "third"):
        assert isinstance(await take(ledger, name), PermitRefused)
    assert called(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["second"]
    # Its room is kept for it.
    assert isinstance(await take(ledger, "newcomer"), PermitRefused)
    second = request("second")
    assert isinstance(await ledger.limits.take_permits(second), PermitGranted)
    assert called(await ledger.limits.return_permits(second.hold, second.needs, None)) == ["third"]


async def test_a_newcomer_does_not_overtake_those_that_wait(ledger: Ledger) -> None:
    assert isinstance(await take(ledger, "first"), PermitGranted)
    assert isinstance(await take(ledger, "second"), PermitRefused)
    await ledger.limits.release_permits("worker-1")  # which calls nobody
    answer = await take(ledger, "newcomer")
    assert isinstance(answer, PermitRefused)
    assert called(answer) == ["second"]


async def test_room_goes_to_the_most_urgent_whoever_came_first(ledger: Ledger) -> None:
    first = request("first", lane="backfill")
    await ledger.limits.take_permits(first)
    waiting = [
        request("backfill", lane="backfill"),
        request("hot", priority=3),
        request("hot-later", priority=3),
        request("hot-urgent", priority=9),
    ]
    for each in waiting:
        assert isinstance(await ledger.limits.take_permits(each), PermitRefused)
    order, ended = [], first
    while woken := called(await ledger.limits.return_permits(ended.hold, ended.needs, None)):
        order += woken
        (ended,) = [each for each in waiting if each.job_id == woken[0]]
        assert isinstance(await ledger.limits.take_permits(ended), PermitGranted)
    assert order == ["hot-urgent", "hot", "hot-later", "backfill"]


async def test_a_hot_newcomer_passes_those_of_lower_lanes_that_wait(ledger: Ledger) -> None:
    await together(ledger, [request("first", lane="backfill")])
    await together(ledger, [request("second", lane="backfill")])
    await ledger.limits.release_permits("worker-1")  # which calls nobody
    later = [request("third", lane="backfill"), request("newcomer")]
    answers = await together(ledger, later)
    assert [type(each) for each in answers] == [PermitRefused, PermitGranted]
    assert called(answers[0]) == []


async def test_one_that_is_called_and_does_not_come_holds_nobody_up_for_long(
    ledger: Ledger,
) -> None:
    first = request("first")
    await ledger.limits.take_permits(first)
    await take(ledger, "lost")
    await take(ledger, "second")
    assert called(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["lost"]
    await change(ledger, "UPDATE limit_waits SET called_until = 1, call_after = 1 WHERE calls > 0")
    assert called(await take(ledger, "newcomer")) == ["lost"]
    # Its room was kept for as long as before, and it is called again later than that.
    await change(ledger, "UPDATE limit_waits SET called_until = 1 WHERE calls > 0")
    assert called(await take(ledger, "newcomer")) == ["second"]


async def test_room_is_not_kept_for_the_time_by_which_a_clock_was_ahead(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=1, per_minute=100))
    first = request("first", need)
    await ledger.limits.take_permits(first)
    await take(ledger, "lost", need)
    assert called(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["lost"]
    await change(ledger, "UPDATE limit_waits SET called_until = called_until + 3600")
    await change(ledger, "UPDATE limit_waits SET call_after = call_after + 3600")
    assert isinstance(await take(ledger, "newcomer", need), PermitGranted)


async def test_room_of_one_that_died_comes_back(ledger: Ledger) -> None:
    assert isinstance(await take(ledger, "first"), PermitGranted)
    assert isinstance(await take(ledger, "large"), PermitRefused)
    await change(ledger, "UPDATE limit_holds SET expires_at = 1")
    assert isinstance(await take(ledger, "large"), PermitGranted)


async def test_renewed_room_stays(ledger: Ledger) -> None:
    first = replace(request("first"), life=0.0)
    await ledger.limits.take_permits(first)
    assert await ledger.limits.renew_permits([first.hold], LIFE) == 1
    assert isinstance(await take(ledger, "second"), PermitRefused)


async def test_one_key_does_not_hold_up_another(ledger: Ledger) -> None:
    acme, other = (
        PermitDemand("account", key, LimitSize(concurrency=1)) for key in ("acme", "other")
    )
    assert isinstance(await take(ledger, "a1", acme), PermitGranted)
    full = await take(ledger, "a2", acme)
    assert isinstance(full, PermitRefused)
    assert str(full) == "no room in the limit account of acme: 1 of 1 are running"
    assert isinstance(await take(ledger, "b1", other), PermitGranted)


async def test_room_is_taken_in_all_limits_or_in_none(ledger: Ledger) -> None:
    wide, narrow = (
        PermitDemand("wide", "", LimitSize(per_minute=5)),
        PermitDemand("narrow", "", LimitSize(concurrency=1)),
    )
    assert isinstance(await take(ledger, "first", narrow, wide), PermitGranted)
    assert isinstance(await take(ledger, "second", narrow, wide), PermitRefused)
    reports = {each.name: each for each in await ledger.limits.limit_reports()}
    assert (reports["wide"].last_minute, reports["wide"].in_use) == (1, 1)
    assert (reports["narrow"].in_use, reports["narrow"].waiting) == (1, 1)
    assert reports["narrow"].next_room is None
    assert reports["wide"].next_room == 0


async def test_tokens_are_reserved_before_and_corrected_after(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(tokens_per_minute=100), tokens=60)
    first = request("first", need)
    assert isinstance(await ledger.limits.take_permits(first), PermitGranted)
    full = await take(ledger, "second", need)
    assert isinstance(full, PermitRefused)
    assert "60 of 100 tokens were used in the last minute" in full.why
    # There is room for a job of 40 tokens, but none such is next.
    (report,) = await ledger.limits.limit_reports()
    assert report.next_room is not None
    assert 0 < report.next_room <= 61
    assert called(await ledger.limits.return_permits(first.hold, first.needs, 10)) == ["second"]
    (report,) = await ledger.limits.limit_reports()
    assert report.tokens_last_minute == 10
    assert isinstance(await take(ledger, "second", need), PermitGranted)


async def test_who_waits_for_a_rate_is_called_when_there_is_room(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(per_minute=1))
    assert isinstance(await take(ledger, "first", need), PermitGranted)
    for name in ("second", "third"):
        assert isinstance(await take(ledger, name, need), PermitRefused)
    wait = await ledger.limits.limit_wait("second")
    assert wait is not None
    assert (wait.name, wait.times) == ("openai", 1)
    assert await ledger.limits.waiting_for_permits() == {"hot.llm": 2}
    assert called(await ledger.limits.wake_waiting()) == []
    await change(ledger, "UPDATE limits SET bins = '[]'")  # a minute later
    assert called(await ledger.limits.wake_waiting()) == ["second"]
    assert called(await ledger.limits.wake_waiting()) == []


async def test_who_waits_until_it_is_too_old_is_called_to_be_told_so(ledger: Ledger) -> None:
    assert isinstance(await take(ledger, "first"), PermitGranted)
    await ledger.limits.take_permits(replace(request("second"), expires_at=5.0))
    assert called(await ledger.limits.wake_waiting()) == ["second"]
    await ledger.limits.cancel_wait("second")
    assert called(await ledger.limits.wake_waiting()) == []


async def test_room_of_a_dead_worker_is_given_on_although_nothing_else_happens(
    ledger: Ledger,
) -> None:
    assert isinstance(await take(ledger, "first"), PermitGranted)
    assert isinstance(await take(ledger, "second"), PermitRefused)
    await change(ledger, "UPDATE limit_holds SET expires_at = 1")
    assert called(await ledger.limits.wake_waiting()) == ["second"]


async def test_a_copy_of_a_job_that_has_ended_or_runs_takes_no_room(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("job-1"))
    await ledger.jobs.claim(claim("job-1"))
    assert isinstance(await take(ledger, "job-1"), NotRunnable)
    await ledger.jobs.finish(finish(State.SUCCEEDED))
    assert isinstance(await take(ledger, "job-1"), NotRunnable)
    assert isinstance(await take(ledger, "other"), PermitGranted)


async def test_a_job_that_waited_and_was_cancelled_makes_way(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("job-1"))
    first = request("first")
    await ledger.limits.take_permits(first)
    await take(ledger, "job-1")
    await take(ledger, "second")
    await ledger.jobs.cancel("job-1", 1.0)
    assert called(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["job-1"]
    gone = await take(ledger, "job-1")
    assert isinstance(gone, NotRunnable)
    assert called(gone) == ["second"]


async def test_who_takes_a_job_over_takes_its_room_over(ledger: Ledger) -> None:
    assert isinstance(await take(ledger, "first"), PermitGranted)
    heir = replace(request("first", claimed=True), holder="worker-2")
    assert isinstance(await ledger.limits.take_permits(heir), PermitGranted)
    (report,) = await ledger.limits.limit_reports()
    assert report.in_use == 1
    assert called(await ledger.limits.return_permits(heir.hold, heir.needs, None)) == []
    assert isinstance(await take(ledger, "second"), PermitGranted)


async def test_a_large_job_is_not_called_and_stands_in_nobodys_way(ledger: Ledger) -> None:
    first = request("first")
    await ledger.limits.take_permits(first)
    assert isinstance(await ledger.limits.take_permits(request("large", large=True)), PermitRefused)
    assert called(await ledger.limits.return_permits(first.hold, first.needs, None)) == []
    assert isinstance(await take(ledger, "second"), PermitGranted)


async def test_limits_that_nobody_uses_are_forgotten(ledger: Ledger) -> None:
    first = request("first")
    await ledger.limits.take_permits(first)
    await change(ledger, "UPDATE limits SET updated_at = 1")
    assert (await ledger.limits.forget_idle_limits(limit=9)).rows == {}
    await ledger.limits.release_permits("worker-1")
    assert (await ledger.limits.forget_idle_limits(limit=9)).rows == {"limits": 1}
    assert await ledger.limits.limit_reports() == []


async def test_many_limits_are_forgotten_in_steps(ledger: Ledger) -> None:
    keys = ("a", "b", "c")
    for key in keys:
        need = replace(ONE, key=key)
        assert isinstance(await take(ledger, f"of {key}", need), PermitGranted)
        assert isinstance(await take(ledger, f"waits for {key}", need), PermitRefused)
    for table in ("limits SET updated_at", "limit_holds SET expires_at", "limit_waits SET back_at"):
        await change(ledger, f"UPDATE {table} = 1")
    rows = await removed(lambda limit: ledger.limits.forget_idle_limits(limit=limit))
    assert rows == dict.fromkeys(("limits", "limit_holds", "limit_waits"), 3)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_jobs_that_share_several_limits_do_not_lock_each_other(
    ledger: Ledger, order: tuple[str, str]
) -> None:
    # `demands_of` sorts them; whoever asks has them in that order.
    needs = [PermitDemand(name, "", LimitSize(concurrency=2)) for name in sorted(order)]

    async def work(number: int) -> None:
        asked = request(f"job-{order[0]}-{number}", *needs)
        if isinstance(await ledger.limits.take_permits(asked), PermitGranted):
            await ledger.limits.return_permits(asked.hold, asked.needs, 5)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert {each.in_use for each in await ledger.limits.limit_reports()} == {0}


# --- what it costs ----------------------------------------------------------------------------


async def together(ledger: Ledger, changes: Sequence[PermitChange]) -> list[PermitAnswer]:
    """In one transaction, as the group commit does with those that come at once."""
    return await ledger.core.database.write(
        lambda connection: PermitBatch(connection, changes).run()
    )


def of_accounts(number: int, prefix: str) -> list[PermitRequest]:
    """So many jobs of each of three accounts, which run one at a time."""
    needs = [PermitDemand("account", key, LimitSize(concurrency=1)) for key in ("a", "b", "c")]
    return [request(f"{prefix}-{n}-{need.key}", need) for n in range(number) for need in needs]


async def test_forty_jobs_without_room_cost_three_statements(ledger: Ledger) -> None:
    await together(ledger, of_accounts(1, "first"))
    with statements() as said:
        answers = await together(ledger, of_accounts(13, "more"))
    assert {type(each) for each in answers} == {PermitRefused}
    # Lock; read; those that wait from now on. The limits themselves are as they were.
    assert len(said) == 3, said
    assert sum(each.waiting for each in await ledger.limits.limit_reports()) == 39


async def test_jobs_that_end_and_call_others_cost_four_statements_on_postgresql(
    ledger: Ledger,
) -> None:
    first = of_accounts(1, "first")
    await together(ledger, first)
    await together(ledger, of_accounts(5, "more"))
    with statements() as said:
        answers = await together(
            ledger, [PermitReturn(each.hold, each.needs, None) for each in first]
        )
    assert sorted(called(answers[0])) == ["more-0-a", "more-0-b", "more-0-c"]
    # Lock; read; who waits, of all accounts; and what has changed.
    if ledger.core.database.dialect == "postgresql":
        assert len(said) == 4, said
    with statements() as said:
        answers = await together(ledger, of_accounts(1, "more"))
    assert {type(each) for each in answers} == {PermitGranted}
    if ledger.core.database.dialect == "postgresql":
        assert len(said) == 3, said


async def test_each_job_that_ends_is_told_whether_somebody_waits(ledger: Ledger) -> None:
    wanted, other = (
        PermitDemand(name, "", LimitSize(concurrency=3)) for name in ("openai", "other")
    )
    first = [request(f"first-{n}", wanted) for n in range(3)]
    alone = request("alone", other)
    await together(ledger, [*first, alone])
    await together(ledger, [request("waiting", wanted)])

    ended = [PermitReturn(each.hold, each.needs, None) for each in (*first[:2], alone)]
    answers = await together(ledger, ended)

    assert called(answers[0]) == ["waiting"]
    assert [each.waited_for for each in answers if isinstance(each, PermitReleased)] == [
        True,
        True,
        False,
    ]


async def test_room_for_many_calls_all_of_them(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=60))
    first = [request(f"first-{n:02}", need) for n in range(60)]
    await together(ledger, first)
    waiting = [request(f"waiting-{n:02}", need) for n in range(70)]
    await together(ledger, waiting)
    answers = await together(ledger, [PermitReturn(each.hold, each.needs, None) for each in first])
    assert called(answers[0]) == [f"waiting-{n:02}" for n in range(60)]


async def test_those_that_come_together_are_called_as_they_came(ledger: Ledger) -> None:
    first = request("first")
    await together(ledger, [first])
    waiting = [request(name) for name in ("d", "b", "e", "a", "c")]
    await together(ledger, waiting)
    order = []
    for ended in (first, *waiting[:-1]):
        answers = await together(ledger, [PermitReturn(ended.hold, ended.needs, None)])
        order += called(answers[0])
        (again,) = [each for each in waiting if each.job_id == order[-1]]
        assert isinstance(await ledger.limits.take_permits(again), PermitGranted)
    assert order == ["d", "b", "e", "a", "c"]


async def test_what_is_read_does_not_grow_with_those_that_wait(sqlite_url: str) -> None:
    await upgrade(sqlite_url)
    async with await Ledger.open(sqlite_url) as ledger:
        await together(ledger, [request("first")])
        few = await steps(ledger, [request("one")])
        await together(ledger, [request(f"waiting-{n}") for n in range(2000)])
        many = await steps(ledger, [request("another")])
    assert many < few * 1.5


async def steps(ledger: Ledger, changes: Sequence[PermitChange]) -> int:
    """So many tens of steps SQLite takes for these in one transaction."""
    taken = count()

    def work(connection: Connection) -> list[PermitAnswer]:
        file: Any = connection.connection.driver_connection
        file.set_progress_handler(lambda: next(taken) and None, 10)
        try:
            return PermitBatch(connection, changes).run()
        finally:
            file.set_progress_handler(None, 10)

    await ledger.core.database.write(work)
    return next(taken)


async def test_a_second_copy_does_not_take_the_place_of_one_that_waits(ledger: Ledger) -> None:
    await take(ledger, "first")
    await take(ledger, "twice")
    answers = await together(ledger, [request("twice"), request("twice")])
    assert [type(each) for each in answers] == [PermitRefused, NotRunnable]
    assert await ledger.limits.limit_wait("twice") is not None
