"""Named limits in the ledger: a permit is taken in one step, never by more jobs than the limit
allows, and comes back by itself when its holder dies."""

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
from tests.support.small_steps import remove_in_steps
from tests.support.statements import record_statements

HOLD_NUMBERS = count(1)
HOLD_SECONDS = 15.0
"""Seconds for which a permit is held without being renewed."""
ONE_AT_A_TIME = PermitDemand("openai", "", LimitSize(concurrency=1))


def make_request(
    job_id: str,
    *needs: PermitDemand,
    claimed: bool = False,
    large: bool = False,
    lane: str = "hot",
    priority: int = 5,
) -> PermitRequest:
    return PermitRequest(
        hold=f"hold-{next(HOLD_NUMBERS)}",
        holder="worker-1",
        needs=needs or (ONE_AT_A_TIME,),
        job_id=job_id,
        redrives=0,
        attempts=0,
        queue=f"{lane}.llm",
        rank=rank_of(lane, priority),
        body=None if large else job_id.encode(),
        levels=(5.0, 10.0, 20.0),
        expires_at=4_000_000_000.0,
        life=HOLD_SECONDS,
        claimed=claimed,
    )


async def take_permits(ledger: Ledger, job_id: str, *needs: PermitDemand) -> PermitAnswer:
    return await ledger.limits.take_permits(make_request(job_id, *needs))


def woken_by(answer: PermitAnswer | Sequence[object]) -> list[str]:
    woken_waits = answer if isinstance(answer, Sequence) else answer.woken
    return [wait.job_id for wait in woken_waits]  # type: ignore[attr-defined]


async def execute(ledger: Ledger, statement: str) -> None:
    await ledger.core.database.write(
        lambda connection: connection.execute(text(statement)).rowcount
    )


async def test_no_more_jobs_run_than_a_limit_allows_whoever_asks(
    ledger: Ledger, database_url: str
) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=3))
    in_use = max_in_use = 0
    async with await Ledger.open(database_url) as other_ledger:

        async def work(own_ledger: Ledger, name: str) -> int:
            nonlocal in_use, max_in_use
            granted = 0
            for number in range(20):
                request = make_request(f"{name}-{number}", need)
                if isinstance(await own_ledger.limits.take_permits(request), PermitGranted):
                    in_use += 1
                    max_in_use = max(max_in_use, in_use)
                    await asyncio.sleep(0)
                    in_use -= 1
                    granted += 1
                    await own_ledger.limits.return_permits(request.hold, request.needs, None)
            return granted

        workers = [
            work(own_ledger, f"{n}-{id(own_ledger)}")
            for own_ledger in (ledger, other_ledger)
            for n in range(4)
        ]
        granted = sum(await asyncio.gather(*workers))
    assert max_in_use <= 3
    assert granted >= 3


async def test_a_freed_permit_goes_to_the_job_that_has_waited_longest(ledger: Ledger) -> None:
    first = make_request("first")
    assert isinstance(await ledger.limits.take_permits(first), PermitGranted)
    for name in ("second", "third"):
        assert isinstance(await take_permits(ledger, name), PermitRefused)
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["second"]
    # The permit is kept for the second job.
    assert isinstance(await take_permits(ledger, "newcomer"), PermitRefused)
    second = make_request("second")
    assert isinstance(await ledger.limits.take_permits(second), PermitGranted)
    assert woken_by(await ledger.limits.return_permits(second.hold, second.needs, None)) == [
        "third"
    ]


async def test_a_newcomer_does_not_overtake_waiting_jobs(ledger: Ledger) -> None:
    assert isinstance(await take_permits(ledger, "first"), PermitGranted)
    assert isinstance(await take_permits(ledger, "second"), PermitRefused)
    await ledger.limits.release_permits("worker-1")  # which wakes nobody
    answer = await take_permits(ledger, "newcomer")
    assert isinstance(answer, PermitRefused)
    assert woken_by(answer) == ["second"]


async def test_a_freed_permit_goes_to_the_most_urgent_job_whoever_came_first(
    ledger: Ledger,
) -> None:
    first = make_request("first", lane="backfill")
    await ledger.limits.take_permits(first)
    waiting = [
        make_request("backfill", lane="backfill"),
        make_request("hot", priority=3),
        make_request("hot-later", priority=3),
        make_request("hot-urgent", priority=9),
    ]
    for request in waiting:
        assert isinstance(await ledger.limits.take_permits(request), PermitRefused)
    order, ended = [], first
    while woken := woken_by(await ledger.limits.return_permits(ended.hold, ended.needs, None)):
        order += woken
        (ended,) = [request for request in waiting if request.job_id == woken[0]]
        assert isinstance(await ledger.limits.take_permits(ended), PermitGranted)
    assert order == ["hot-urgent", "hot", "hot-later", "backfill"]


async def test_a_hot_newcomer_overtakes_waiting_jobs_of_lower_lanes(ledger: Ledger) -> None:
    await apply_together(ledger, [make_request("first", lane="backfill")])
    await apply_together(ledger, [make_request("second", lane="backfill")])
    await ledger.limits.release_permits("worker-1")  # which wakes nobody
    later = [make_request("third", lane="backfill"), make_request("newcomer")]
    answers = await apply_together(ledger, later)
    assert [type(answer) for answer in answers] == [PermitRefused, PermitGranted]
    assert woken_by(answers[0]) == []


async def test_a_woken_job_that_does_not_come_holds_others_up_only_briefly(
    ledger: Ledger,
) -> None:
    first = make_request("first")
    await ledger.limits.take_permits(first)
    await take_permits(ledger, "lost")
    await take_permits(ledger, "second")
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["lost"]
    await execute(ledger, "UPDATE limit_waits SET called_until = 1, call_after = 1 WHERE calls > 0")
    assert woken_by(await take_permits(ledger, "newcomer")) == ["lost"]
    # The lost job had its permit kept once more; after that, the next one is woken.
    await execute(ledger, "UPDATE limit_waits SET called_until = 1 WHERE calls > 0")
    assert woken_by(await take_permits(ledger, "newcomer")) == ["second"]


async def test_a_permit_is_not_kept_longer_because_a_clock_was_ahead(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=1, per_minute=100))
    first = make_request("first", need)
    await ledger.limits.take_permits(first)
    await take_permits(ledger, "lost", need)
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["lost"]
    await execute(ledger, "UPDATE limit_waits SET called_until = called_until + 3600")
    await execute(ledger, "UPDATE limit_waits SET call_after = call_after + 3600")
    assert isinstance(await take_permits(ledger, "newcomer", need), PermitGranted)


async def test_an_expired_permit_comes_back(ledger: Ledger) -> None:
    assert isinstance(await take_permits(ledger, "first"), PermitGranted)
    assert isinstance(await take_permits(ledger, "second"), PermitRefused)
    await execute(ledger, "UPDATE limit_holds SET expires_at = 1")
    assert isinstance(await take_permits(ledger, "second"), PermitGranted)


async def test_a_renewed_permit_stays_taken(ledger: Ledger) -> None:
    first = replace(make_request("first"), life=0.0)
    await ledger.limits.take_permits(first)
    assert await ledger.limits.renew_permits([first.hold], HOLD_SECONDS) == 1
    assert isinstance(await take_permits(ledger, "second"), PermitRefused)


async def test_one_key_does_not_hold_up_another(ledger: Ledger) -> None:
    acme, globex = (
        PermitDemand("account", key, LimitSize(concurrency=1)) for key in ("acme", "globex")
    )
    assert isinstance(await take_permits(ledger, "a1", acme), PermitGranted)
    refused = await take_permits(ledger, "a2", acme)
    assert isinstance(refused, PermitRefused)
    assert str(refused) == "no room in the limit account of acme: 1 of 1 are running"
    assert isinstance(await take_permits(ledger, "b1", globex), PermitGranted)


async def test_permits_are_taken_in_all_limits_or_in_none(ledger: Ledger) -> None:
    wide, narrow = (
        PermitDemand("wide", "", LimitSize(per_minute=5)),
        PermitDemand("narrow", "", LimitSize(concurrency=1)),
    )
    assert isinstance(await take_permits(ledger, "first", narrow, wide), PermitGranted)
    assert isinstance(await take_permits(ledger, "second", narrow, wide), PermitRefused)
    reports = {report.name: report for report in await ledger.limits.limit_reports()}
    assert (reports["wide"].last_minute, reports["wide"].in_use) == (1, 1)
    assert (reports["narrow"].in_use, reports["narrow"].waiting) == (1, 1)
    assert reports["narrow"].next_room is None
    assert reports["wide"].next_room == 0


async def test_tokens_are_reserved_before_and_corrected_after(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(tokens_per_minute=100), tokens=60)
    first = make_request("first", need)
    assert isinstance(await ledger.limits.take_permits(first), PermitGranted)
    refused = await take_permits(ledger, "second", need)
    assert isinstance(refused, PermitRefused)
    assert "60 of 100 tokens were used in the last minute" in refused.why
    # A job of 40 tokens could run, but the next one needs 60.
    (report,) = await ledger.limits.limit_reports()
    assert report.next_room is not None
    assert 0 < report.next_room <= 61
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, 10)) == ["second"]
    (report,) = await ledger.limits.limit_reports()
    assert report.tokens_last_minute == 10
    assert isinstance(await take_permits(ledger, "second", need), PermitGranted)


async def test_a_job_that_waits_for_a_rate_is_woken_when_it_may_run(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(per_minute=1))
    assert isinstance(await take_permits(ledger, "first", need), PermitGranted)
    for name in ("second", "third"):
        assert isinstance(await take_permits(ledger, name, need), PermitRefused)
    wait = await ledger.limits.limit_wait("second")
    assert wait is not None
    assert (wait.name, wait.times) == ("openai", 1)
    assert await ledger.limits.waiting_for_permits() == {"hot.llm": 2}
    assert woken_by(await ledger.limits.wake_waiting()) == []
    await execute(ledger, "UPDATE limits SET bins = '[]'")  # a minute later
    assert woken_by(await ledger.limits.wake_waiting()) == ["second"]
    assert woken_by(await ledger.limits.wake_waiting()) == []


async def test_a_waiting_job_that_has_expired_is_woken(ledger: Ledger) -> None:
    assert isinstance(await take_permits(ledger, "first"), PermitGranted)
    await ledger.limits.take_permits(replace(make_request("second"), expires_at=5.0))
    assert woken_by(await ledger.limits.wake_waiting()) == ["second"]
    await ledger.limits.cancel_wait("second")
    assert woken_by(await ledger.limits.wake_waiting()) == []


async def test_an_expired_permit_is_given_on_without_another_request(
    ledger: Ledger,
) -> None:
    assert isinstance(await take_permits(ledger, "first"), PermitGranted)
    assert isinstance(await take_permits(ledger, "second"), PermitRefused)
    await execute(ledger, "UPDATE limit_holds SET expires_at = 1")
    assert woken_by(await ledger.limits.wake_waiting()) == ["second"]


async def test_a_copy_of_a_job_that_has_ended_or_runs_gets_no_permit(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("job-1"))
    await ledger.jobs.claim(claim("job-1"))
    assert isinstance(await take_permits(ledger, "job-1"), NotRunnable)
    await ledger.jobs.finish(finish(State.SUCCEEDED))
    assert isinstance(await take_permits(ledger, "job-1"), NotRunnable)
    assert isinstance(await take_permits(ledger, "other"), PermitGranted)


async def test_a_cancelled_job_that_waited_makes_way(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("job-1"))
    first = make_request("first")
    await ledger.limits.take_permits(first)
    await take_permits(ledger, "job-1")
    await take_permits(ledger, "second")
    await ledger.jobs.cancel("job-1", 1.0)
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, None)) == ["job-1"]
    answer = await take_permits(ledger, "job-1")
    assert isinstance(answer, NotRunnable)
    assert woken_by(answer) == ["second"]


async def test_a_worker_that_takes_a_job_over_gets_its_permit(ledger: Ledger) -> None:
    assert isinstance(await take_permits(ledger, "first"), PermitGranted)
    takeover = replace(make_request("first", claimed=True), holder="worker-2")
    assert isinstance(await ledger.limits.take_permits(takeover), PermitGranted)
    (report,) = await ledger.limits.limit_reports()
    assert report.in_use == 1
    assert woken_by(await ledger.limits.return_permits(takeover.hold, takeover.needs, None)) == []
    assert isinstance(await take_permits(ledger, "second"), PermitGranted)


async def test_a_large_job_is_not_woken_and_holds_nobody_up(ledger: Ledger) -> None:
    first = make_request("first")
    await ledger.limits.take_permits(first)
    assert isinstance(
        await ledger.limits.take_permits(make_request("large", large=True)), PermitRefused
    )
    assert woken_by(await ledger.limits.return_permits(first.hold, first.needs, None)) == []
    assert isinstance(await take_permits(ledger, "second"), PermitGranted)


async def test_limits_that_nobody_uses_are_forgotten(ledger: Ledger) -> None:
    first = make_request("first")
    await ledger.limits.take_permits(first)
    await execute(ledger, "UPDATE limits SET updated_at = 1")
    assert (await ledger.limits.forget_idle_limits(limit=9)).rows == {}
    await ledger.limits.release_permits("worker-1")
    assert (await ledger.limits.forget_idle_limits(limit=9)).rows == {"limits": 1}
    assert await ledger.limits.limit_reports() == []


async def test_many_limits_are_forgotten_in_steps(ledger: Ledger) -> None:
    keys = ("a", "b", "c")
    for key in keys:
        need = replace(ONE_AT_A_TIME, key=key)
        assert isinstance(await take_permits(ledger, f"of {key}", need), PermitGranted)
        assert isinstance(await take_permits(ledger, f"waits for {key}", need), PermitRefused)
    for table in ("limits SET updated_at", "limit_holds SET expires_at", "limit_waits SET back_at"):
        await execute(ledger, f"UPDATE {table} = 1")
    rows = await remove_in_steps(lambda limit: ledger.limits.forget_idle_limits(limit=limit))
    assert rows == dict.fromkeys(("limits", "limit_holds", "limit_waits"), 3)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
async def test_jobs_that_share_several_limits_do_not_lock_each_other(
    ledger: Ledger, order: tuple[str, str]
) -> None:
    # `demands_of` sorts the needs of a request by name.
    needs = [PermitDemand(name, "", LimitSize(concurrency=2)) for name in sorted(order)]

    async def work(number: int) -> None:
        request = make_request(f"job-{order[0]}-{number}", *needs)
        if isinstance(await ledger.limits.take_permits(request), PermitGranted):
            await ledger.limits.return_permits(request.hold, request.needs, 5)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert {report.in_use for report in await ledger.limits.limit_reports()} == {0}


# --- what it costs ----------------------------------------------------------------------------


async def apply_together(ledger: Ledger, changes: Sequence[PermitChange]) -> list[PermitAnswer]:
    """Apply them in one transaction, as the group commit does with changes that come together."""
    return await ledger.core.database.write(
        lambda connection: PermitBatch(connection, changes).run()
    )


def make_account_requests(number: int, prefix: str) -> list[PermitRequest]:
    """Return so many requests of each of three accounts, whose jobs run one at a time."""
    needs = [PermitDemand("account", key, LimitSize(concurrency=1)) for key in ("a", "b", "c")]
    return [make_request(f"{prefix}-{n}-{need.key}", need) for n in range(number) for need in needs]


async def test_refusing_many_jobs_costs_three_statements(ledger: Ledger) -> None:
    await apply_together(ledger, make_account_requests(1, "first"))
    with record_statements() as executed:
        answers = await apply_together(ledger, make_account_requests(13, "more"))
    assert {type(answer) for answer in answers} == {PermitRefused}
    # Lock, read, insert the waits. The limits themselves do not change.
    assert len(executed) == 3, executed
    assert sum(report.waiting for report in await ledger.limits.limit_reports()) == 39


async def test_jobs_that_end_and_wake_others_cost_four_statements_on_postgresql(
    ledger: Ledger,
) -> None:
    first = make_account_requests(1, "first")
    await apply_together(ledger, first)
    await apply_together(ledger, make_account_requests(5, "more"))
    with record_statements() as executed:
        answers = await apply_together(
            ledger, [PermitReturn(request.hold, request.needs, None) for request in first]
        )
    assert sorted(woken_by(answers[0])) == ["more-0-a", "more-0-b", "more-0-c"]
    # Lock, read, read the waits of all accounts, write the changes.
    if ledger.core.database.dialect == "postgresql":
        assert len(executed) == 4, executed
    with record_statements() as executed:
        answers = await apply_together(ledger, make_account_requests(1, "more"))
    assert {type(answer) for answer in answers} == {PermitGranted}
    if ledger.core.database.dialect == "postgresql":
        assert len(executed) == 3, executed


async def test_each_job_that_ends_is_told_whether_somebody_waits(ledger: Ledger) -> None:
    openai_need, other_need = (
        PermitDemand(name, "", LimitSize(concurrency=3)) for name in ("openai", "other")
    )
    first = [make_request(f"first-{n}", openai_need) for n in range(3)]
    alone = make_request("alone", other_need)
    await apply_together(ledger, [*first, alone])
    await apply_together(ledger, [make_request("waiting", openai_need)])

    ended = [PermitReturn(request.hold, request.needs, None) for request in (*first[:2], alone)]
    answers = await apply_together(ledger, ended)

    assert woken_by(answers[0]) == ["waiting"]
    assert [answer.waited_for for answer in answers if isinstance(answer, PermitReleased)] == [
        True,
        True,
        False,
    ]


async def test_many_freed_permits_wake_as_many_jobs(ledger: Ledger) -> None:
    need = PermitDemand("openai", "", LimitSize(concurrency=60))
    first = [make_request(f"first-{n:02}", need) for n in range(60)]
    await apply_together(ledger, first)
    waiting = [make_request(f"waiting-{n:02}", need) for n in range(70)]
    await apply_together(ledger, waiting)
    answers = await apply_together(
        ledger, [PermitReturn(request.hold, request.needs, None) for request in first]
    )
    assert woken_by(answers[0]) == [f"waiting-{n:02}" for n in range(60)]


async def test_jobs_of_one_transaction_are_woken_in_its_order(ledger: Ledger) -> None:
    first = make_request("first")
    await apply_together(ledger, [first])
    waiting = [make_request(name) for name in ("d", "b", "e", "a", "c")]
    await apply_together(ledger, waiting)
    order = []
    for ended in (first, *waiting[:-1]):
        answers = await apply_together(ledger, [PermitReturn(ended.hold, ended.needs, None)])
        order += woken_by(answers[0])
        (woken,) = [request for request in waiting if request.job_id == order[-1]]
        assert isinstance(await ledger.limits.take_permits(woken), PermitGranted)
    assert order == ["d", "b", "e", "a", "c"]


async def test_the_cost_of_a_request_does_not_grow_with_the_waiting_jobs(sqlite_url: str) -> None:
    await upgrade(sqlite_url)
    async with await Ledger.open(sqlite_url) as ledger:
        await apply_together(ledger, [make_request("first")])
        few_steps = await count_steps(ledger, [make_request("one")])
        await apply_together(ledger, [make_request(f"waiting-{n}") for n in range(2000)])
        many_steps = await count_steps(ledger, [make_request("another")])
    assert many_steps < few_steps * 1.5


async def count_steps(ledger: Ledger, changes: Sequence[PermitChange]) -> int:
    """Return how many tens of steps SQLite takes for these changes in one transaction."""
    step_numbers = count()

    def work(connection: Connection) -> list[PermitAnswer]:
        file: Any = connection.connection.driver_connection
        file.set_progress_handler(lambda: next(step_numbers) and None, 10)
        try:
            return PermitBatch(connection, changes).run()
        finally:
            file.set_progress_handler(None, 10)

    await ledger.core.database.write(work)
    return next(step_numbers)


async def test_a_second_copy_of_a_waiting_job_is_refused_and_the_first_stays(
    ledger: Ledger,
) -> None:
    await take_permits(ledger, "first")
    await take_permits(ledger, "twice")
    answers = await apply_together(ledger, [make_request("twice"), make_request("twice")])
    assert [type(answer) for answer in answers] == [PermitRefused, NotRunnable]
    assert await ledger.limits.limit_wait("twice") is not None
