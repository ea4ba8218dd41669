"""Letters that the broker has lost go back from the ledger; edits are kept, and can be undone."""

import asyncio
import json
from typing import Any

import pytest

from switchyard.broker.dead.scan import scanning
from switchyard.broker.lanes import DEAD_TTL_SECONDS
from switchyard.broker.message import JobMessage, Metadata, now
from switchyard.services.common.settings import Settings
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.indexing import GRACE_SECONDS, clean_up, index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.scan import scanning_in_turn
from switchyard.services.engine.dead.undo import NothingToUndo, latest_edits, undo
from switchyard.services.engine.ledger import to_message
from switchyard.services.engine.ledger.redrives import RedriveRepository
from switchyard.services.engine.monitoring.check import Diagnostic
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import dead
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.requests import (
    ClaimRequest,
    DeadLetterFilter,
    FinishRequest,
)
from switchyard.services.engine.records.states import DeadLetterState, State
from switchyard.services.engine.redrive.plan import plan_redrive
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.redrives import bury_all, ids, names, run, start
from tests.support.redrives import plan as planned
from tests.support.system import System, open_system


async def lose(system: System, *letter_ids: str) -> None:
    """Take letters out of the queue without a record of it, as the broker does after a week."""
    async with scanning(system.settings.require_amqp_url()) as scan:
        async for letter in scan.letters():
            if letter.id in letter_ids:
                letter.ack()


async def read_letter_state(system: System, letter_id: str) -> str:
    letter = await system.ledger.dead_letters.get_dead(letter_id)
    assert letter is not None
    return letter.state


async def run_killed(system: System, operation: BulkOperation) -> None:
    """Run it in a process that dies once the broker has the copies, and cancel it then."""

    async def raise_killed(*_: object) -> None:
        raise asyncio.CancelledError("killed before it could note that")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RedriveRepository, "record_redriven", raise_killed)
        with pytest.raises(asyncio.CancelledError):
            await run(system, operation)
    await bulk_control.cancel(system.ledger, operation.id)


async def check_letters(system: System) -> list[Diagnostic]:
    settings = Settings(amqp_url=system.settings.amqp_url)
    return await dead(DoctorContext(settings, system.registry, broker={}, ledger=system.ledger))


async def test_doctor_takes_no_letter_for_lost_that_the_broker_has_or_somebody_holds(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        all_ids = await bury_all(system, names(3))
        detail = (await check_letters(system))[-1].detail
        assert detail.startswith("3 wait for somebody: all of ")
        assert "lost" not in detail
        async with scanning_in_turn(system.settings, system.ledger) as scan:
            assert [letter.id async for letter in scan.letters()] == all_ids
            assert "lost" not in (await check_letters(system))[-1].detail


# --- from the ledger --------------------------------------------------------------------------


async def test_letters_that_the_broker_has_lost_go_back_from_the_ledger(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        all_ids = await bury_all(system, names(20))
        lost_ids = all_ids[::2]
        await lose(system, *lost_ids)
        by_id = LetterFilter(ids=frozenset(lost_ids))
        ended = await run(system, await start(system, by_id))
        assert RedriveProgress.from_operation(ended).redriven == 0
        expected_note = (
            "10 letters of these can't be found on the broker any more: `--from-ledger` sends"
        )
        assert (ended.note or "").startswith(expected_note)
        assert (await planned(system, by_id)).notes[0].startswith(expected_note)
        assert (await planned(system, by_id, limit=3)).notes[0].startswith("3 letters of these")

        spec = RedriveSpec(LetterFilter(job_type="scripted"), from_ledger=True)
        plan = await plan_redrive(
            system.settings, system.registry, system.ledger, spec, lanes=system.lanes
        )
        assert (plan.done, plan.routes) == (10, {"backfill.scripted": 10})
        assert await read_letter_state(system, lost_ids[0]) == "waiting"

        ended = await run(system, await start(system, from_ledger=True))
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            10,
        )
        assert await ids(system) == all_ids[1::2]
        await system.start_worker()
        await system.wait_until_all(lost_ids, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in lost_ids} == {1}
        assert await read_letter_state(system, lost_ids[0]) == "redriven"
        assert await read_letter_state(system, all_ids[1]) == "waiting"


async def test_lost_letters_that_were_not_redriven_wait_on(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        all_ids = [
            *await bury_all(system, names(6)),
            *await bury_all(system, names(2, "other"), cause="it failed otherwise"),
        ]
        await lose(system, *all_ids)

        async def list_waiting() -> list[str]:
            await index_waiting(system.settings, system.ledger, system.registry)
            page = await system.ledger.dead_letters.list_dead(DeadLetterFilter(state="waiting"))
            return sorted(letter.id for letter in page.items)

        diagnostic = (await check_letters(system))[-1]
        assert diagnostic.detail.startswith("8 wait for somebody: ")
        assert diagnostic.detail.endswith("; the broker has lost 8 of these")
        assert diagnostic.remedy.endswith("`jobctl dead redrive --all --from-ledger`")
        ended = await run(system, await start(system, limit=2, from_ledger=True))
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            2,
        )
        assert await list_waiting() == all_ids[2:]
        [group, other_group] = await system.ledger.dead_letters.dead_groups()
        assert (group.count, other_group.count) == (4, 2)
        letter_filter = LetterFilter(group=other_group.fingerprint)
        await run(system, await start(system, letter_filter, from_ledger=True))
        assert await list_waiting() == all_ids[2:6]

        # Two people at once: one letter and another.
        first_filter, second_filter = (
            LetterFilter(ids=frozenset({letter_id})) for letter_id in all_ids[2:4]
        )
        await asyncio.gather(
            run(system, await start(system, first_filter, from_ledger=True)),
            run(system, await start(system, second_filter, from_ledger=True)),
        )
        assert await list_waiting() == all_ids[4:6]
        for _ in range(2):
            await run(system, await start(system, from_ledger=True))
        assert await list_waiting() == []
        await system.start_worker()
        await system.wait_until_all(all_ids, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in all_ids} == {1}


async def test_a_killed_redrive_from_the_ledger_leaves_the_unsent_letters(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        all_ids = await bury_all(system, names(4))
        await lose(system, *all_ids)
        await run_killed(system, await start(system, limit=2, from_ledger=True))
        assert {await read_letter_state(system, letter_id) for letter_id in all_ids} == {"waiting"}
        await system.start_worker()
        await system.wait_until_all(all_ids[:2], State.SUCCEEDED)

        ended = await run(system, await start(system, from_ledger=True))
        assert (
            RedriveProgress.from_operation(ended).redriven,
            RedriveProgress.from_operation(ended).dropped,
        ) == (2, 2)
        await system.wait_until_all(all_ids, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in all_ids} == {1}
        assert [await read_letter_state(system, letter_id) for letter_id in all_ids] == [
            "dropped", "dropped", "redriven", "redriven",
        ]  # fmt: skip


async def test_letter_that_was_redriven_before_waits_no_longer(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["job"], "backfill.gated")
        await run_killed(system, await start(system))
        await system.start_worker()
        await journal.started("job")
        assert await read_letter_state(system, "job") == "waiting"
        second_redrive = await start(system, LetterFilter(ids=frozenset({"job"})), from_ledger=True)
        await lose(system, "job")
        assert RedriveProgress.from_operation(await run(system, second_redrive)).dropped == 1
        assert await read_letter_state(system, "job") == "redriven"
        journal.release_all()
        await system.wait_for_state("job", State.SUCCEEDED)


async def test_job_whose_letter_nobody_has_goes_back_from_its_record(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        message = JobMessage(
            job_id="lost", job_type="noop", payload={"n": 8}, metadata=Metadata(source="arxiv")
        )
        claim = ClaimRequest(
            message, "hot", "llm", "hot.noop", "worker", "claim", now().timestamp()
        )
        await system.ledger.jobs.claim(claim)
        await system.ledger.jobs.finish(
            FinishRequest("lost", "claim", State.DEAD, 3, now().timestamp(), reason="exhausted")
        )
        ended = await run(system, await start(system, from_ledger=True))
        assert RedriveProgress.from_operation(ended).redriven == 1
        await system.start_worker()
        record = await system.wait_for_state("lost", State.SUCCEEDED)
        assert (record.result, record.source, record.redrives) == ({"n": 8}, "arxiv", 1)


async def test_purged_letters_go_back_only_by_their_id(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        all_ids = await bury_all(system, names(3))
        await lose(system, *all_ids)
        await system.ledger.dead_letters.mark_dead_state(all_ids[:2], DeadLetterState.PURGED, 1.0)
        ended = await run(system, await start(system, from_ledger=True))
        assert RedriveProgress.from_operation(ended).redriven == 1
        first_filter = LetterFilter(ids=frozenset(all_ids[:1]))
        ended = await run(system, await start(system, first_filter, from_ledger=True))
        assert RedriveProgress.from_operation(ended).redriven == 1


async def test_the_index_drops_letters_that_the_broker_has_expired(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, database_url) as system:
        [letter_id] = await bury_all(system, ["job"])
        await clean_up(system.ledger)
        assert await read_letter_state(system, letter_id) == "waiting"
        await system.ledger.dead_letters.drop_expired_letters(
            now().timestamp() + 60 - DEAD_TTL_SECONDS - GRACE_SECONDS
        )
        assert await read_letter_state(system, letter_id) == "waiting"
        assert await system.ledger.dead_letters.drop_expired_letters(now().timestamp() + 1) == 1
        assert await read_letter_state(system, letter_id) == "dropped"


# --- the record shows what is run -------------------------------------------------------------


async def test_the_record_of_a_changed_job_shows_what_runs(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        change = Change(values={"payload.n": 7}, priority=9, max_attempts=5, to="hot.noop")
        await run(system, await start(system, change=change))
        record = await system.record("job")
        assert (record.state, record.payload, record.lane) == (State.QUEUED, {"n": 7}, "hot")
        assert (record.routing_key, record.priority, record.max_attempts) == ("hot.noop", 9, 5)
        # The message that the scheduler would publish again is of the same job.
        rebuilt = to_message(record)
        sent = JobMessage.decode((await system.take("hot.llm")).body)
        assert (rebuilt.payload, rebuilt.priority, rebuilt.generation) == ({"n": 7}, 9, (1, 0))
        assert sent.payload == rebuilt.payload
        assert sent.metadata.model_extra == {"edited_from": "job/0"}


async def test_worker_that_is_faster_than_the_record_shows_the_change_too(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, database_url) as system:
        await bury_all(system, ["job"], "backfill.noop")

        async def raise_killed(*_: object) -> None:
            raise asyncio.CancelledError("killed before it could note that")

        monkeypatch.setattr(RedriveRepository, "record_redriven", raise_killed)
        with pytest.raises(asyncio.CancelledError):
            await run(system, await start(system, change=Change(values={"payload.n": 7})))
        await system.start_worker()
        record = await system.wait_for_state("job", State.SUCCEEDED)
        assert (record.payload, record.result) == ({"n": 7}, {"n": 7})


# --- edits ------------------------------------------------------------------------------------


async def undo_edits(system: System, **selection: Any) -> list[tuple[bool, str]]:
    edits = await latest_edits(system.ledger, **selection)
    results = await undo(system.ledger, system.registry, system.wire, edits)
    await index_waiting(system.settings, system.ledger, system.registry)
    return [(result.done, result.note) for result in results]


async def test_edit_is_undone_until_it_runs(broker: TestBroker, database_url: str) -> None:
    async with open_system(broker, database_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        [before] = await system.letters()
        operation = await start(system, change=Change(values={"payload.n": 7}, to="hot.noop"))
        await run(system, operation)
        [edit] = await system.ledger.redrives.letter_edits(letter_id="job")
        assert json.loads(edit.original)["payload"] == {}
        assert json.loads(edit.edited)["payload"] == {"n": 7}
        assert (edit.operation_id, edit.edited_by) == (operation.id, "test")

        assert [done for done, _ in await undo_edits(system, letter_ids=["job"])] == [True]
        [after] = await system.letters()
        assert after.info == before.info
        assert after.message is not None
        assert before.message is not None
        assert after.message.payload == before.message.payload
        record = await system.record("job")
        assert (record.state, record.payload, record.lane) == (State.DEAD, {}, "backfill")
        assert await read_letter_state(system, "job") == "waiting"
        assert await system.ledger.redrives.settle_redriven(operation.id) == {"undone": 1}
        assert await undo_edits(system, letter_ids=["job"]) == [(True, "was undone before")]
        assert await ids(system) == ["job"]

        # The copy is still in its lane. Nobody runs it, and a further redrive does run.
        worker = await system.start_worker()
        await eventually(lambda: worker.worker.counters.skipped == 1)
        assert journal.runs("job") == 0
        await run(system, await start(system, change=Change(values={"payload.n": 8})))
        record = await system.wait_for_state("job", State.SUCCEEDED)
        assert record.result == {"n": 8}
        assert await undo_edits(system, letter_ids=["job"]) == [
            (False, "too late: its job has begun, or was redriven")
        ]


async def test_an_undo_of_a_redrive_takes_back_jobs_that_have_not_begun(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        all_ids = await bury_all(system, names(6), "backfill.gated")
        operation = await start(system, change=Change(priority=3))
        await run(system, operation)
        await system.start_worker(slots=2, reserve=0)
        await journal.started(*all_ids[:2])
        results = await undo_edits(system, operation_id=operation.id)
        assert sum(done for done, _ in results) == 4
        assert await ids(system) == all_ids[2:]
        journal.release_all()
        await system.wait_until_all(all_ids[:2], State.SUCCEEDED)
        assert journal.runs(all_ids[5]) == 0


async def test_undo_that_was_interrupted_is_finished(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        await run(system, await start(system, change=Change(priority=3)))

        async def raise_cut(*_: object) -> None:
            raise ConnectionError("cut")

        with monkeypatch.context() as patch:
            patch.setattr(type(system.wire), "send", raise_cut)
            with pytest.raises(ConnectionError):
                await undo_edits(system, letter_ids=["job"])
        assert await ids(system) == []
        # Nothing is lost meanwhile: the ledger has the letter, and the job is dead.
        assert await system.state("job") == State.DEAD
        assert await read_letter_state(system, "job") == "waiting"
        assert [done for done, _ in await undo_edits(system, letter_ids=["job"])] == [True]
        assert await ids(system) == ["job"]


async def test_an_undo_without_edits_is_refused(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        await run(system, await start(system))
        with pytest.raises(NothingToUndo, match="was not edited"):
            await latest_edits(system.ledger, letter_ids=["job"])
        with pytest.raises(NothingToUndo, match="jobctl dead redrives show redrive-0000"):
            await latest_edits(system.ledger, operation_id="redrive-0000")
