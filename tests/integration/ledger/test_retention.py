"""Jobs that ended long enough ago are removed, unless they are still needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import Connection, event, func, select, text

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import attempts, jobs, metadata
from switchyard.services.engine.records.bulk import BulkHold, BulkState
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.retention import KeptFor, RetentionAges
from switchyard.services.engine.records.states import AttemptOutcome, DeadLetterState, State
from switchyard.services.engine.scheduler.retention import Pruner
from switchyard.services.engine.scheduler.small_steps import (
    MAX_STEP,
    MIN_STEP,
    MIN_STEP_ON_SERVER,
    StepSize,
)
from tests.support.ended_jobs import ENDED, read_job_ids, record_ended_job, record_old_job
from tests.support.made import NOW, claim, finish, letter, new_job

DAY = 86_400.0
AGES = RetentionAges(
    {State.SUCCEEDED: 30 * DAY, State.CANCELLED: 30 * DAY, State.DEAD: 365 * DAY},
    {"fetch_page": 7 * DAY, "keep_me": None},
    operations=60 * DAY,
)


async def test_jobs_go_when_the_age_of_their_state_or_type_is_over(ledger: Ledger) -> None:
    await record_ended_job(ledger, "old", days=31)
    await record_ended_job(ledger, "young", days=29)
    await record_ended_job(ledger, "old-cancelled", state=State.CANCELLED, days=31, lane="backfill")
    await record_ended_job(ledger, "dead", state=State.DEAD, days=364)
    await record_ended_job(ledger, "old-dead", state=State.DEAD, days=366)
    await record_ended_job(ledger, "page", job_type="fetch_page", days=8)
    await record_ended_job(ledger, "dead-page", job_type="fetch_page", state=State.DEAD, days=364)
    await record_ended_job(ledger, "for-ever", job_type="keep_me", days=10_000)
    report = await Pruner(ledger, AGES).prune()
    assert await read_job_ids(ledger) == {"young", "dead", "dead-page", "for-ever"}
    assert report.rows["jobs"] == report.jobs.total() == 4


async def test_a_lane_has_an_age_of_its_own_and_a_type_in_it_keeps_its_own(ledger: Ledger) -> None:
    for lane in ("hot", "backfill", "maintenance"):
        await record_ended_job(ledger, f"{lane}-page", job_type="fetch_page", days=8, lane=lane)
        await record_ended_job(ledger, f"{lane}-kept", job_type="keep_me", days=100, lane=lane)
        for days in (2, 20, 40):
            await record_ended_job(ledger, f"{lane}-{days}", days=days, lane=lane)
        await record_ended_job(ledger, f"{lane}-dead", state=State.DEAD, days=40, lane=lane)
    ages = replace(AGES, lanes={"backfill": DAY, "maintenance": None})
    pruner = Pruner(ledger, ages)
    assert (await pruner.make_pass(dry_run=True)).rows["jobs"] == 7
    assert await ledger.retention.overdue(ages, by=0.0, sample=100) == 7
    await pruner.prune()
    kept_ids = {
        f"{lane}-{name}" for lane in ("hot", "backfill", "maintenance") for name in ("kept", "dead")
    }
    assert await read_job_ids(ledger) == kept_ids | {
        "hot-2",
        "hot-20",
        "maintenance-2",
        "maintenance-20",
        "maintenance-40",
    }


async def test_nothing_is_removed_where_all_is_kept_for_ever(ledger: Ledger) -> None:
    await record_ended_job(ledger, "old", days=10_000)
    ages = RetentionAges(dict.fromkeys((State.SUCCEEDED, State.CANCELLED, State.DEAD)))
    assert (await Pruner(ledger, ages).prune()).rows == Counter()
    assert await read_job_ids(ledger) == {"old"}


@pytest.mark.parametrize("state", sorted(set(State) - set(ENDED)))
async def test_a_job_that_has_not_ended_stays_however_old(ledger: Ledger, state: State) -> None:
    await record_old_job(ledger, "open", state=state, days=10_000)
    await Pruner(ledger, AGES).prune()
    assert await read_job_ids(ledger) == {"open"}


async def test_a_job_goes_after_all_that_followed_from_it(ledger: Ledger) -> None:
    await record_ended_job(ledger, "root", days=50)
    await record_ended_job(ledger, "stage", days=45, parent_id="root", lane="maintenance")
    await record_old_job(ledger, "last", state=State.QUEUED, days=40, parent_id="stage")
    pruner = Pruner(ledger, AGES)
    report = await pruner.prune()
    assert await read_job_ids(ledger) == {"root", "stage", "last"}
    assert report.kept == {KeptFor.FOLLOWERS: 2}
    await ledger.core.database.write(
        lambda connection: connection.execute(
            text("UPDATE jobs SET state = 'succeeded', finished_at = updated_at WHERE id = 'last'")
        )
    )
    assert (await pruner.make_pass(dry_run=True)).rows["jobs"] == 3
    await pruner.prune()
    assert await read_job_ids(ledger) == set()


async def test_a_parent_that_is_the_job_itself_keeps_nothing(ledger: Ledger) -> None:
    await record_ended_job(ledger, "own", parent_id="own")
    await Pruner(ledger, AGES).prune()
    assert await read_job_ids(ledger) == set()


async def test_members_of_a_join_stay_until_the_job_that_waited_has_gone(ledger: Ledger) -> None:
    await record_ended_job(ledger, "member", join_id="waits")
    await record_old_job(ledger, "waits", state=State.DEAD, days=40, joins=Joining())
    assert (await Pruner(ledger, AGES).prune()).kept == {KeptFor.JOIN: 1}
    assert await read_job_ids(ledger) == {"member", "waits"}


async def test_a_job_whose_letter_waits_is_kept_and_its_letter_too(ledger: Ledger) -> None:
    await record_ended_job(ledger, "dead", state=State.DEAD, days=400)
    await ledger.dead_letters.index_dead([letter("dead", dead_at=NOW - 400 * DAY)])
    await make_letters_old(ledger, 400)
    report = await Pruner(ledger, AGES).prune()
    assert (await read_job_ids(ledger), report.kept) == ({"dead"}, {KeptFor.LETTER: 1})
    await ledger.dead_letters.mark_dead_state(["dead"], DeadLetterState.DROPPED, 0.0)
    report = await Pruner(ledger, AGES).prune()
    assert report.rows == {"jobs": 1, "dead_letters": 1}
    assert await ledger.dead_letters.get_dead("dead") is None


async def test_letters_without_a_job_go_once_they_do_not_wait(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead([letter(None, id="raw-1"), letter(None, id="raw-2")])
    await ledger.dead_letters.mark_dead_state(["raw-1"], DeadLetterState.PURGED, 0.0)
    await make_letters_old(ledger, 400)
    assert (await Pruner(ledger, AGES).make_pass(dry_run=True)).rows == {"dead_letters": 1}
    assert (await Pruner(ledger, AGES).prune()).rows == {"dead_letters": 1}
    assert await ledger.dead_letters.get_dead("raw-2") is not None


async def test_jobs_of_a_backfill_stay_until_it_has_ended_and_are_counted_after(
    ledger: Ledger,
) -> None:
    operation = await ledger.bulk.create_bulk(
        "backfill-1", kind="backfill", title="all", spec={}, created_by="test"
    )
    await record_ended_job(ledger, "item", operation_id=operation.id)
    await record_ended_job(ledger, "stage", operation_id=operation.id, parent_id="item")
    before = await ledger.bulk_jobs.count_bulk_jobs(operation.id)
    assert (await Pruner(ledger, AGES).prune()).kept == {KeptFor.OPERATION: 2}
    await end_operation(ledger, operation.id, days=50)
    await Pruner(ledger, AGES).prune()
    assert await read_job_ids(ledger) == set()
    assert await ledger.bulk_jobs.count_bulk_jobs(operation.id) == before
    assert before == ({State.SUCCEEDED: 1}, {State.SUCCEEDED: 1})


async def test_jobs_that_a_redrive_sends_stay_until_it_has_ended(ledger: Ledger) -> None:
    await ledger.bulk.create_bulk(
        "redrive-1", kind="redrive", title="all", spec={}, created_by="test"
    )
    assert await ledger.bulk.claim_bulk(BulkHold("me", 60.0), kinds=["redrive"]) is not None
    assert await ledger.redrives.record_plan("redrive-1", "me", {"sent": 1})
    await record_ended_job(ledger, "sent")
    assert (await Pruner(ledger, AGES).prune()).kept == {KeptFor.REDRIVE: 1}
    await end_operation(ledger, "redrive-1", days=70)
    assert (await Pruner(ledger, AGES).prune()).rows == {
        "jobs": 1,
        "redriven_letters": 1,
        "bulk_operations": 1,
    }
    assert await ledger.bulk.get_bulk("redrive-1") is None


async def test_a_job_with_an_idempotency_key_is_found_by_it_for_a_week(ledger: Ledger) -> None:
    await record_ended_job(ledger, "keyed", days=6.9, idempotency_key="key-1")
    await record_ended_job(ledger, "old-keyed", days=7.1, idempotency_key="key-2")
    ages = RetentionAges({**AGES.states, State.SUCCEEDED: DAY})
    assert (await Pruner(ledger, ages).prune()).kept == {KeptFor.KEY: 1}
    assert await read_job_ids(ledger) == {"keyed"}


async def test_all_rows_of_a_job_go_with_it_in_transactions_of_a_few_attempts(
    ledger: Ledger,
) -> None:
    await ledger.jobs.record(new_job())
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.DEAD, outcome=AttemptOutcome.DEAD))
    await make_jobs_old(ledger)
    row = {"job_id": "job-1", "redrive": 0, "attempt": 1, "finished_at": 0.0, "outcome": "snooze"}
    await ledger.core.database.write(
        lambda connection: connection.execute(attempts.insert(), [row] * 50)
    )
    pruner = Pruner(ledger, AGES)
    report = await pruner.prune()
    assert report.rows == {"jobs": 1, "attempts": 51}
    assert await count_remaining_rows(ledger) == {}


async def test_a_dry_run_counts_the_same_and_removes_nothing(ledger: Ledger) -> None:
    for number in range(7):
        await record_ended_job(ledger, f"job-{number}", days=40 + number)
    await record_ended_job(ledger, "page", job_type="fetch_page", days=8)
    dry_run = await Pruner(ledger, AGES).make_pass(dry_run=True)
    assert len(await read_job_ids(ledger)) == 8
    report = await Pruner(ledger, AGES).prune()
    assert (dry_run.jobs, dry_run.rows) == (report.jobs, report.rows)
    assert dry_run.jobs == {
        (State.SUCCEEDED, "summarize_content"): 7,
        (State.SUCCEEDED, "fetch_page"): 1,
    }


async def test_more_jobs_than_one_step_are_all_removed_past_those_that_stay(
    ledger: Ledger,
) -> None:
    await record_ended_job(ledger, "job-0")
    row = await ledger.core.database.read(
        lambda connection: dict(connection.execute(select(jobs)).one()._mapping)
    )
    more_jobs = [row | {"id": f"job-{number}"} for number in range(1, 240)]
    children = [
        row | {"id": f"child-{number}", "parent_id": f"job-{number}", "state": State.QUEUED.value}
        for number in range(0, 240, 3)
    ]
    await ledger.core.database.write(
        lambda connection: connection.execute(jobs.insert(), more_jobs + children)
    )
    await Pruner(ledger, AGES).prune()
    remaining = await read_job_ids(ledger)
    assert len([job_id for job_id in remaining if job_id.startswith("job-")]) == len(children)


async def test_a_pass_that_removed_all_it_looked_at_is_followed_at_once(ledger: Ledger) -> None:
    pruner = Pruner(ledger, AGES)
    for name in ("old", "older"):
        await record_ended_job(ledger, name)
        await pruner.run()
        assert await read_job_ids(ledger) == set()
    await record_ended_job(ledger, "parent")
    await record_old_job(ledger, "open", state=State.QUEUED, days=40, parent_id="parent")
    await pruner.run()
    await record_ended_job(ledger, "another")
    await pruner.run()
    assert await read_job_ids(ledger) == {"parent", "open", "another"}, (
        "it rests: most would stay again"
    )


async def test_steps_stay_large_where_nobody_waits_for_them(ledger: Ledger) -> None:
    """Each step is followed by a rest, so a busy server would never get done with small ones."""
    step_size = Pruner(ledger, AGES)._removing.size
    step_size.adapt(10.0)
    is_server = ledger.core.database.dialect == "postgresql"
    assert step_size.rows == (MIN_STEP_ON_SERVER if is_server else MIN_STEP)


async def test_a_removal_on_postgresql_waits_for_few_answers(postgres_url: str) -> None:
    """On a busy machine the transaction waits long for each answer."""
    statements: list[str] = []

    def record_statement(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement.split()[0])

    async with await Ledger.open(postgres_url) as ledger:
        for number in range(3):
            await record_ended_job(ledger, f"job-{number}")
        engine = ledger.core.database._engine.sync_engine  # type: ignore[attr-defined]
        event.listen(engine, "before_cursor_execute", record_statement)
        removal = await ledger.retention.remove_jobs(AGES, [f"job-{n}" for n in range(3)])
        assert removal.rows["jobs"] == 3
    assert statements == ["SELECT", "WITH"]


def test_a_step_that_took_too_long_makes_the_next_one_smaller() -> None:
    step_size = StepSize()
    first_size = step_size.rows
    step_size.adapt(0.2)
    assert MIN_STEP <= step_size.rows <= first_size // 5
    step_size.adapt(10.0)
    assert step_size.rows == MIN_STEP
    for _ in range(100):
        step_size.adapt(0.001)
    assert (step_size.rows, step_size.longest) == (MAX_STEP, 10.0)
    assert (step_size.steps, step_size.too_long) == (102, 2)


async def end_operation(ledger: Ledger, operation_id: str, *, days: float) -> None:
    at = ledger.clock.time() - days * DAY
    statement = text(
        "UPDATE bulk_operations SET state = :state, finished_at = :at WHERE id = :operation"
    )
    values = {"state": BulkState.COMPLETED.value, "at": at, "operation": operation_id}
    await ledger.core.database.write(lambda connection: connection.execute(statement, values))


async def make_jobs_old(ledger: Ledger) -> None:
    statement = text("UPDATE jobs SET created_at = 1, finished_at = 1, updated_at = 1")
    await ledger.core.database.write(lambda connection: connection.execute(statement))


async def make_letters_old(ledger: Ledger, days: float) -> None:
    at = ledger.clock.time() - days * DAY
    statement = text("UPDATE dead_letters SET dead_at = :at, updated_at = :at")
    await ledger.core.database.write(lambda connection: connection.execute(statement, {"at": at}))


async def count_remaining_rows(ledger: Ledger) -> dict[str, int]:
    """Return the number of rows by table, without empty tables and those that are never empty."""

    def count(connection: Connection) -> dict[str, int]:
        row_counts = {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in metadata.sorted_tables
            if table.name not in {"system_id", "graph_counters"}
        }
        return {name: number for name, number in row_counts.items() if number}

    return await ledger.core.database.read(count)
