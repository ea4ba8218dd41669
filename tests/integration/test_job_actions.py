"""Bulk actions: jobs cancelled, rerun and moved by a filter, under a record; stopped, undone."""

import asyncio
from typing import Any

import pytest

from switchyard.services.engine.actions.handler import ActionRun, action_handlers
from switchyard.services.engine.actions.spec import (
    ActionProgress,
    ActionSpec,
    InvalidAction,
    plan_action,
    rerun_id_of,
    settled,
    start_action,
    undo_spec,
)
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.ledger.sql.tables import jobs as jobs_table
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.job_actions import JobAction
from switchyard.services.engine.records.pauses import NewPause, PauseScope
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system

CANCEL, RERUN, MOVE = JobAction


async def start_operation(system: System, spec: ActionSpec, **options: Any) -> BulkOperation:
    return await start_action(system.ledger, spec, created_by="ann", **options)


async def run_operation(system: System, operation: BulkOperation) -> BulkOperation:
    handlers = action_handlers(system.settings, system.registry, system.ledger, lanes=system.lanes)
    return await asyncio.wait_for(
        BulkRunner(system.ledger, handlers).run_one(operation.id), MAX_WAIT
    )


async def run_action(
    system: System, action: JobAction, job_filter: JobFilter, **options: Any
) -> tuple[BulkOperation, ActionProgress]:
    """Run an action to its end. Returns its record, and how far it came."""
    ended = await run_operation(
        system, await start_operation(system, ActionSpec(action, job_filter, **options))
    )
    return ended, ActionProgress.from_operation(await settled(system.ledger, ended))


async def set_duration(system: System, job_id: str, seconds: float) -> None:
    """Change the job's record as if the job had taken so long."""
    finished_at = (await system.record(job_id)).finished_at
    assert finished_at is not None
    statement = (
        jobs_table.update()
        .where(jobs_table.c.id == job_id)
        .values(started_at=finished_at - seconds)
    )
    await system.ledger.core.database.write(lambda connection: connection.execute(statement))


async def test_slow_jobs_of_a_source_are_rerun_as_new_jobs_linked_with_theirs(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker()
        own_ids = [
            await system.publish("hot.noop", {"n": n}, source="api:x", priority=n) for n in range(3)
        ]
        other_id = await system.publish("hot.noop", {"n": 7}, source="api:y")
        await system.wait_until_all([*own_ids, other_id], State.SUCCEEDED)
        for job_id in (own_ids[0], own_ids[2], other_id):
            await set_duration(system, job_id, 6)
        job_filter = JobFilter(
            source="api:x", since=system.ledger.clock.time() - 3600, slower_than=5.0
        )
        plan = await plan_action(system.ledger, ActionSpec(RERUN, job_filter))
        assert (plan.matched, [job.id for job in plan.examples]) == (2, [own_ids[0], own_ids[2]])

        ended, progress = await run_action(system, RERUN, job_filter)
        assert (ended.state, ended.created_by) == (BulkState.COMPLETED, "ann")
        assert (progress.total, progress.done, progress.skipped) == (2, 2, 0)
        ids = await system.ledger.system.job_ids()
        for n in (0, 2):
            (note,) = await system.ledger.job_actions.of_job(own_ids[n])
            assert (note.operation_id, note.action) == (ended.id, RERUN)
            assert note.new_job_id == rerun_id_of(ids, ended.id, own_ids[n])
            new = await system.wait_for_state(note.new_job_id, State.SUCCEEDED)
            assert new.payload == {"n": n}
            assert (new.source, new.priority, new.operation_id) == ("api:x", n, ended.id)
            assert new.envelope["metadata"]["rerun_of"] == own_ids[n]
            assert (await system.record(own_ids[n])).state is State.SUCCEEDED
        assert ActionProgress.from_operation(await settled(system.ledger, ended)).succeeded == 2
        # The jobs that it has published fit the filter as well, and are not rerun by it.
        assert len((await system.ledger.job_reads.list_jobs(JobFilter(source="api:x"))).items) == 5


async def test_a_rerun_has_the_parameters_that_it_is_given(system: System) -> None:
    await system.start_worker()
    job_id = await system.publish("hot.scripted", {"steps": ["dead"]})
    await system.wait_for_state(job_id, State.DEAD)
    change = Change(values={"payload.steps": ["done"]}, to="backfill.scripted", max_attempts=7)
    _, progress = await run_action(system, RERUN, JobFilter(ids=(job_id,)), change=change)
    assert (progress.done, progress.notes) == (1, ())
    (note,) = await system.ledger.job_actions.of_job(job_id)
    new = await system.wait_for_state(note.new_job_id or "", State.SUCCEEDED)
    assert (new.routing_key, new.max_attempts) == ("backfill.scripted", 7)
    assert (await system.record(job_id)).payload == {"steps": ["dead"]}

    invalid_change = Change(values={"payload.steps": 5})
    _, progress = await run_action(system, RERUN, JobFilter(ids=(job_id,)), change=invalid_change)
    assert (progress.done, progress.skipped) == (0, 1)
    assert "steps" in progress.notes[0]


async def test_a_rerun_that_is_killed_anywhere_reruns_no_job_twice(
    broker: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the publish, before and after it was noted: the batch is done again."""
    async with open_system(broker, database_url) as system:
        await system.start_worker()
        ids = [await system.publish("hot.noop", {"n": n}) for n in range(20)]
        await system.wait_until_all(ids, State.SUCCEEDED)
        operation = await start_operation(system, ActionSpec(RERUN, JobFilter(job_type="noop")))
        with monkeypatch.context() as patch:

            async def raise_killed(*_: object, **__: object) -> None:
                raise RuntimeError("killed")

            patch.setattr(system.ledger.job_actions, "record_reruns", raise_killed)
            assert (await run_operation(system, operation)).state is BulkState.FAILED
        await bulk_control.resume(system.ledger, operation.id)
        with monkeypatch.context() as patch:
            save = ActionRun._save

            async def save_or_be_killed(self: ActionRun) -> None:
                if self.progress.done:
                    raise RuntimeError("killed")
                await save(self)

            patch.setattr(ActionRun, "_save", save_or_be_killed)
            assert (await run_operation(system, operation)).state is BulkState.FAILED
        await bulk_control.resume(system.ledger, operation.id)
        ended = await run_operation(system, operation)
        assert ended.state is BulkState.COMPLETED
        assert ActionProgress.from_operation(ended).done == 20
        page = await system.ledger.job_reads.list_jobs(JobFilter(operation_id=operation.id))
        assert len(page.items) == 20
        await system.wait_until_all([job.id for job in page.items], State.SUCCEEDED)
        assert all(journal.runs(job.id) == 1 for job in page.items)


async def test_a_rerun_halts_when_too_many_of_its_jobs_die_and_goes_on_when_resumed(
    system: System,
) -> None:
    await system.start_worker()
    ids = [await system.publish("hot.scripted", {"steps": ["dead"]}) for _ in range(12)]
    await system.wait_until_all(ids, State.DEAD)
    spec = ActionSpec(RERUN, JobFilter(job_type="scripted"), halt_on=0.5)
    ended = await run_operation(system, await start_operation(system, spec))
    assert ended.state is BulkState.HALTED
    assert "have died" in (ended.note or "")
    await bulk_control.resume(system.ledger, ended.id)
    ended = await run_operation(system, ended)
    assert ended.state is BulkState.COMPLETED
    assert ActionProgress.from_operation(ended).failed == 12


async def test_a_rerun_publishes_its_canary_first_and_halts_where_one_of_it_dies(
    system: System,
) -> None:
    await system.start_worker()
    ids = [await system.publish("hot.scripted", {"steps": ["dead"]}) for _ in range(6)]
    await system.wait_until_all(ids, State.DEAD)
    spec = ActionSpec(RERUN, JobFilter(job_type="scripted"), canary=2)
    halted = await run_operation(system, await start_operation(system, spec))
    assert halted.state is BulkState.HALTED
    assert "canary" in (halted.note or "")
    assert 1 <= ActionProgress.from_operation(halted).done <= 2


async def test_a_canary_that_succeeds_lets_the_others_go(system: System) -> None:
    await system.start_worker()
    ids = [await system.publish("hot.noop", {"n": number}) for number in range(6)]
    await system.wait_until_all(ids, State.SUCCEEDED)
    spec = ActionSpec(RERUN, JobFilter(job_type="noop"), canary=2)
    ended = await run_operation(system, await start_operation(system, spec))
    progress = ActionProgress.from_operation(ended)
    assert (ended.state, progress.done, progress.succeeded) == (BulkState.COMPLETED, 6, 6)


async def test_jobs_are_cancelled_by_a_filter_and_rerun_to_undo_it(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker(slots=1, lanes=["hot"])
        running = await system.publish("hot.gated", source="batch")
        await journal.started(running)
        waiting = [await system.publish("backfill.noop", {"n": n}, source="batch") for n in (1, 2)]
        later = await system.publish("backfill.noop", source="batch", delay=900)
        other_id = await system.publish("backfill.noop", source="other")
        ended, progress = await run_action(system, CANCEL, JobFilter(source="batch"))
        assert (ended.state, progress.done, progress.stopping) == (BulkState.COMPLETED, 4, 1)
        await system.wait_until_all([running, *waiting, later], State.CANCELLED)
        assert await system.state(other_id) is State.QUEUED

        undo = undo_spec(ended, remote=False)
        assert undo.action is RERUN
        undone = await run_operation(system, await start_operation(system, undo))
        assert ActionProgress.from_operation(undone).done == 4
        page = await system.ledger.job_reads.list_jobs(JobFilter(operation_id=undone.id))
        rerun_ids = {job.id for job in page.items}
        ids = await system.ledger.system.job_ids()
        assert rerun_ids == {
            rerun_id_of(ids, ended.id, job_id) for job_id in [running, *waiting, later]
        }
        # A second undo, as by a double click, reruns none of them again.
        repeated_undo = await run_operation(
            system, await start_operation(system, undo_spec(ended, remote=False))
        )
        progress = ActionProgress.from_operation(repeated_undo)
        assert (progress.done, progress.skipped) == (0, 4)
        # The undo itself is undone by a cancel of the new jobs.
        undone_back = await run_operation(
            system, await start_operation(system, undo_spec(undone, remote=False))
        )
        assert undone_back.kind == CANCEL
        await system.wait_until_all(rerun_ids, State.CANCELLED)


async def test_jobs_move_to_another_lane_where_they_run_once_and_back(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        ids = [await system.publish("hot.noop", {"n": n}) for n in range(5)]
        later = await system.publish("hot.noop", delay=900)
        unmoved = await system.publish("hot.scripted", {"steps": ["done"]})
        ended, progress = await run_action(
            system, MOVE, JobFilter(job_type="noop"), lane="backfill"
        )
        assert (ended.state, progress.done, progress.skipped) == (BulkState.COMPLETED, 6, 0)
        await system.wait_until_ready("backfill.llm", 5)
        for job_id in ids:
            moved = await system.record(job_id)
            assert (moved.state, moved.routing_key) == (State.QUEUED, "backfill.noop")
        assert (await system.record(later)).state is State.SCHEDULED
        assert (await system.record(unmoved)).lane == "hot"

        # The copies that are still in the hot lane are not run.
        await system.start_worker(lanes=["hot"])
        await system.wait_for_state(unmoved, State.SUCCEEDED)
        await system.wait_until_ready("hot.llm", 0)
        assert {await system.state(job_id) for job_id in ids} == {State.QUEUED}

        undone_back = await run_operation(
            system, await start_operation(system, undo_spec(ended, remote=False))
        )
        assert ActionProgress.from_operation(undone_back).done == 6
        await system.wait_until_all(ids, State.SUCCEEDED)
        assert {start.lane for job_id in ids for start in journal.starts_of(job_id)} == {"hot"}
        assert [journal.runs(job_id) for job_id in ids] == [1] * 5
        assert (await system.record(later)).lane == "hot"


async def test_a_new_priority_lets_a_waiting_job_go_first(system: System) -> None:
    ids = [await system.publish("hot.noop", {"n": n}, priority=3) for n in range(4)]
    _, progress = await run_action(system, MOVE, JobFilter(ids=(ids[3],)), priority=9)
    assert (progress.done, progress.notes) == (1, ())
    await system.start_worker(slots=1)
    await system.wait_until_all(ids, State.SUCCEEDED)
    assert journal.starts[0].job_id == ids[3]
    assert (await system.record(ids[3])).priority == 9
    _, progress = await run_action(system, MOVE, JobFilter(ids=(ids[0],)), priority=9)
    assert (progress.total, progress.done) == (0, 0)


async def test_a_move_is_refused_for_a_lane_in_which_the_type_is_not_worked(
    system: System,
) -> None:
    job_id = await system.publish("hot.tidied")
    _, progress = await run_action(system, MOVE, JobFilter(ids=(job_id,)), lane="backfill")
    assert (progress.done, progress.skipped) == (0, 1)
    assert "not worked in lane backfill" in progress.notes[0]
    assert (await system.record(job_id)).lane == "hot"


async def test_a_move_waits_for_room_in_the_new_lane(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"backfill": 2})
    async with open_system(broker310, sqlite_url, lanes=lanes) as system:
        ids = [await system.publish("hot.noop", {"n": n}) for n in range(4)]
        operation = await start_operation(
            system, ActionSpec(MOVE, JobFilter(job_type="noop"), lane="backfill")
        )
        task = asyncio.create_task(run_operation(system, operation))

        async def is_waiting() -> bool:
            record = await bulk_control.require_bulk(system.ledger, operation.id)
            return record.note == "waits for room in backfill.llm"

        await eventually(is_waiting, what="the note")
        await system.start_worker(lanes=["backfill"])
        assert (await task).state is BulkState.COMPLETED
        await system.wait_until_all(ids, State.SUCCEEDED)
        assert [journal.runs(job_id) for job_id in ids] == [1] * 4


async def test_a_moved_job_that_a_pause_holds_waits_for_the_pause_of_its_new_lane(
    system: System,
) -> None:
    job_id = await system.publish("hot.noop")
    await system.ledger.pauses.pause(NewPause(PauseScope.LANE, "backfill", "ann"))
    await run_action(system, MOVE, JobFilter(ids=(job_id,)), lane="backfill")
    assert await system.state(job_id) is State.PAUSED
    await run_action(system, MOVE, JobFilter(ids=(job_id,)), lane="hot")
    assert await system.state(job_id) is State.QUEUED
    await system.start_worker()
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert journal.runs(job_id) == 1


async def test_an_action_is_paused_goes_on_and_keeps_its_limit(system: System) -> None:
    ids = [await system.publish("backfill.noop", {"n": n}) for n in range(6)]
    operation = await start_operation(
        system, ActionSpec(CANCEL, JobFilter(lane="backfill"), limit=4), rate=4.0
    )
    task = asyncio.create_task(run_operation(system, operation))

    async def has_begun() -> bool:
        record = await bulk_control.require_bulk(system.ledger, operation.id)
        return ActionProgress.from_operation(record).done > 0

    await eventually(has_begun)
    await bulk_control.pause(system.ledger, operation.id, "by ann")
    paused = await task
    assert paused.state is BulkState.PAUSED
    assert 0 < ActionProgress.from_operation(paused).done < 4
    await bulk_control.set_limits(system.ledger, operation.id, {"rate": None})
    await bulk_control.resume(system.ledger, operation.id)
    ended = await run_operation(system, operation)
    assert ActionProgress.from_operation(ended).done == 4
    states = [await system.state(job_id) for job_id in ids]
    assert states == [State.CANCELLED] * 4 + [State.QUEUED] * 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ActionSpec(CANCEL, JobFilter()), "say which jobs"),
        (ActionSpec(CANCEL, JobFilter(state=State.DEAD)), "no dead job can be cancelled"),
        (ActionSpec(RERUN, JobFilter(state=State.RUNNING)), "no running job can be rerun"),
        (ActionSpec(MOVE, JobFilter(lane="hot")), "say where to"),
        (ActionSpec(MOVE, JobFilter(lane="hot"), lane="warm"), "warm"),
        (ActionSpec(MOVE, JobFilter(lane="hot"), priority=11), "priority must be 0 to 10"),
        (ActionSpec(RERUN, JobFilter(lane="hot"), halt_on=2.0), "halt_on"),
        (ActionSpec(CANCEL, JobFilter(lane="hot"), halt_on=0.5), "are for reruns"),
        (ActionSpec(MOVE, JobFilter(lane="hot"), priority=1, canary=2), "are for reruns"),
        (ActionSpec(RERUN, JobFilter(lane="hot"), canary=0), "canary must be 1 or more"),
        (ActionSpec(CANCEL, JobFilter(lane="hot"), priority=3), "are for moves"),
    ],
)
def test_a_senseless_action_is_refused(spec: ActionSpec, message: str) -> None:
    with pytest.raises(InvalidAction, match=message):
        spec.check()
