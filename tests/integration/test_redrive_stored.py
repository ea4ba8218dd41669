"""What the broker has no longer goes back from the ledger; edits are kept, and undone."""

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
    """The broker loses letters, as it does after seven days; nobody is told."""
    async with scanning(system.settings.require_amqp_url()) as scan:
        async for letter in scan.letters():
            if letter.id in letter_ids:
                letter.ack()


async def letter_state(system: System, letter_id: str) -> str:
    letter = await system.ledger.dead_letters.get_dead(letter_id)
    assert letter is not None
    return letter.state


async def run_killed(system: System, operation: BulkOperation) -> None:
    """Its process dies once the broker has the copies, and nobody goes on with it."""

    async def never(*_: object) -> None:
        raise asyncio.CancelledError("killed before it could note that")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RedriveRepository, "record_redriven", never)
        with pytest.raises(asyncio.CancelledError):
            await run(system, operation)
    await bulk_control.cancel(system.ledger, operation.id)


async def doctor_of(system: System) -> list[Diagnostic]:
    settings = Settings(amqp_url=system.settings.amqp_url)
    return await dead(DoctorContext(settings, system.registry, broker={}, ledger=system.ledger))


async def test_doctor_takes_no_letter_for_lost_that_the_broker_has_or_somebody_holds(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        everything = await bury_all(system, names(3))
        detail = (await doctor_of(system))[-1].detail
        assert detail.startswith("3 wait for somebody: all of ")
        assert "lost" not in detail
        async with scanning_in_turn(system.settings, system.ledger) as scan:
            assert [letter.id async for letter in scan.letters()] == everything
            assert "lost" not in (await doctor_of(system))[-1].detail


# --- from the ledger --------------------------------------------------------------------------


async def test_what_the_broker_has_no_longer_goes_back_from_the_ledger(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        everything = await bury_all(system, names(20))
        gone = everything[::2]
        await lose(system, *gone)
        by_id = LetterFilter(ids=frozenset(gone))
        plain = await run(system, await start(system, by_id))
        assert RedriveProgress.from_operation(plain).redriven == 0
        told = "10 letters of these can't be found on the broker any more: `--from-ledger` sends"
        assert (plain.note or "").startswith(told)
        assert (await planned(system, by_id)).notes[0].startswith(told)
        assert (await planned(system, by_id, limit=3)).notes[0].startswith("3 letters of these")

        spec = RedriveSpec(LetterFilter(job_type="scripted"), from_ledger=True)
        plan = await plan_redrive(
            system.settings, system.registry, system.ledger, spec, lanes=system.lanes
        )
        assert (plan.done, plan.routes) == (10, {"backfill.scripted": 10})
        assert await letter_state(system, gone[0]) == "waiting"

        ended = await run(system, await start(system, from_ledger=True))
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            10,
        )
        assert await ids(system) == everything[1::2]
        await system.start_worker()
        await system.wait_until_all(gone, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in gone} == {1}
        assert await letter_state(system, gone[0]) == "redriven"
        assert await letter_state(system, everything[1]) == "waiting"


async def test_part_of_what_the_broker_has_lost_goes_back_and_the_rest_waits_to_be_seen(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        everything = [
            *await bury_all(system, names(6)),
            *await bury_all(system, names(2, "other"), cause="it failed otherwise"),
        ]
        await lose(system, *everything)

        async def waiting() -> list[str]:
            await index_waiting(system.settings, system.ledger, system.registry)
            page = await system.ledger.dead_letters.list_dead(DeadLetterFilter(state="waiting"))
            return sorted(letter.id for letter in page.items)

        told = (await doctor_of(system))[-1]
        assert told.detail.startswith("8 wait for somebody: ")
        assert told.detail.endswith("; the broker has lost 8 of these")
        assert told.remedy.endswith("`jobctl dead redrive --all --from-ledger`")
        ended = await run(system, await start(system, limit=2, from_ledger=True))
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            2,
        )
        assert await waiting() == everything[2:]
        [group, other] = await system.ledger.dead_letters.dead_groups()
        assert (group.count, other.count) == (4, 2)
        which = LetterFilter(group=other.fingerprint)
        await run(system, await start(system, which, from_ledger=True))
        assert await waiting() == everything[2:6]

        # Two people at once: one letter and another.
        one, another = (LetterFilter(ids=frozenset({each})) for each in everything[2:4])
        await asyncio.gather(
            run(system, await start(system, one, from_ledger=True)),
            run(system, await start(system, another, from_ledger=True)),
        )
        assert await waiting() == everything[4:6]
        for _ in range(2):
            await run(system, await start(system, from_ledger=True))
        assert await waiting() == []
        await system.start_worker()
        await system.wait_until_all(everything, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in everything} == {1}


async def test_redrive_from_the_ledger_that_is_killed_leaves_what_it_has_not_sent(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        everything = await bury_all(system, names(4))
        await lose(system, *everything)
        await run_killed(system, await start(system, limit=2, from_ledger=True))
        assert {await letter_state(system, each) for each in everything} == {"waiting"}
        await system.start_worker()
        await system.wait_until_all(everything[:2], State.SUCCEEDED)

        ended = await run(system, await start(system, from_ledger=True))
        assert (
            RedriveProgress.from_operation(ended).redriven,
            RedriveProgress.from_operation(ended).dropped,
        ) == (2, 2)
        await system.wait_until_all(everything, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in everything} == {1}
        assert [await letter_state(system, each) for each in everything] == [
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
        assert await letter_state(system, "job") == "waiting"
        again = await start(system, LetterFilter(ids=frozenset({"job"})), from_ledger=True)
        await lose(system, "job")
        assert RedriveProgress.from_operation(await run(system, again)).dropped == 1
        assert await letter_state(system, "job") == "redriven"
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
        everything = await bury_all(system, names(3))
        await lose(system, *everything)
        await system.ledger.dead_letters.mark_dead_state(
            everything[:2], DeadLetterState.PURGED, 1.0
        )
        ended = await run(system, await start(system, from_ledger=True))
        assert RedriveProgress.from_operation(ended).redriven == 1
        one = LetterFilter(ids=frozenset(everything[:1]))
        ended = await run(system, await start(system, one, from_ledger=True))
        assert RedriveProgress.from_operation(ended).redriven == 1


async def test_index_notes_when_the_brokers_time_for_a_letter_is_over(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, database_url) as system:
        [letter_id] = await bury_all(system, ["job"])
        await clean_up(system.ledger)
        assert await letter_state(system, letter_id) == "waiting"
        await system.ledger.dead_letters.drop_expired_letters(
            now().timestamp() + 60 - DEAD_TTL_SECONDS - GRACE_SECONDS
        )
        assert await letter_state(system, letter_id) == "waiting"
        assert await system.ledger.dead_letters.drop_expired_letters(now().timestamp() + 1) == 1
        assert await letter_state(system, letter_id) == "dropped"


# --- the record shows what is run -------------------------------------------------------------


async def test_record_of_a_changed_job_is_what_is_run(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        change = Change(values={"payload.n": 7}, priority=9, max_attempts=5, to="hot.noop")
        await run(system, await start(system, change=change))
        record = await system.record("job")
        assert (record.state, record.payload, record.lane) == (State.QUEUED, {"n": 7}, "hot")
        assert (record.routing_key, record.priority, record.max_attempts) == ("hot.noop", 9, 5)
        # What the scheduler would publish again is the same job.
        again = to_message(record)
        sent = JobMessage.decode((await system.take("hot.llm")).body)
        assert (again.payload, again.priority, again.generation) == ({"n": 7}, 9, (1, 0))
        assert sent.payload == again.payload
        assert sent.metadata.model_extra == {"edited_from": "job/0"}


async def test_worker_that_is_faster_than_the_record_shows_the_change_too(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, database_url) as system:
        await bury_all(system, ["job"], "backfill.noop")

        async def never(*_: object) -> None:
            raise asyncio.CancelledError("killed before it could note that")

        monkeypatch.setattr(RedriveRepository, "record_redriven", never)
        with pytest.raises(asyncio.CancelledError):
            await run(system, await start(system, change=Change(values={"payload.n": 7})))
        await system.start_worker()
        record = await system.wait_for_state("job", State.SUCCEEDED)
        assert (record.payload, record.result) == ({"n": 7}, {"n": 7})


# --- edits ------------------------------------------------------------------------------------


async def undone(system: System, **which: Any) -> list[tuple[bool, str]]:
    edits = await latest_edits(system.ledger, **which)
    answers = await undo(system.ledger, system.registry, system.wire, edits)
    await index_waiting(system.settings, system.ledger, system.registry)
    return [(each.done, each.note) for each in answers]


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

        assert [done for done, _ in await undone(system, letter_ids=["job"])] == [True]
        [after] = await system.letters()
        assert after.info == before.info
        assert after.message is not None
        assert before.message is not None
        assert after.message.payload == before.message.payload
        record = await system.record("job")
        assert (record.state, record.payload, record.lane) == (State.DEAD, {}, "backfill")
        assert await letter_state(system, "job") == "waiting"
        assert await system.ledger.redrives.settle_redriven(operation.id) == {"undone": 1}
        assert await undone(system, letter_ids=["job"]) == [(True, "was undone before")]
        assert await ids(system) == ["job"]

        # The copy is still in its lane. Nobody runs it, and a further redrive does run.
        worker = await system.start_worker()
        await eventually(lambda: worker.worker.counters.skipped == 1)
        assert journal.runs("job") == 0
        await run(system, await start(system, change=Change(values={"payload.n": 8})))
        record = await system.wait_for_state("job", State.SUCCEEDED)
        assert record.result == {"n": 8}
        assert await undone(system, letter_ids=["job"]) == [
            (False, "too late: its job has begun, or was redriven")
        ]


async def test_undo_of_a_whole_redrive_takes_back_what_has_not_begun(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        everything = await bury_all(system, names(6), "backfill.gated")
        operation = await start(system, change=Change(priority=3))
        await run(system, operation)
        await system.start_worker(slots=2, reserve=0)
        await journal.started(*everything[:2])
        results = await undone(system, operation_id=operation.id)
        assert sum(done for done, _ in results) == 4
        assert await ids(system) == everything[2:]
        journal.release_all()
        await system.wait_until_all(everything[:2], State.SUCCEEDED)
        assert journal.runs(everything[5]) == 0


async def test_undo_that_was_interrupted_is_finished(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        await run(system, await start(system, change=Change(priority=3)))

        async def away(*_: object) -> None:
            raise ConnectionError("cut")

        with monkeypatch.context() as patched:
            patched.setattr(type(system.wire), "send", away)
            with pytest.raises(ConnectionError):
                await undone(system, letter_ids=["job"])
        assert await ids(system) == []
        # Nothing is lost meanwhile: the ledger has the letter, and the job is dead.
        assert await system.state("job") == State.DEAD
        assert await letter_state(system, "job") == "waiting"
        assert [done for done, _ in await undone(system, letter_ids=["job"])] == [True]
        assert await ids(system) == ["job"]


async def test_there_is_nothing_to_undo(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["job"], "backfill.noop")
        await run(system, await start(system))
        with pytest.raises(NothingToUndo, match="was not edited"):
            await latest_edits(system.ledger, letter_ids=["job"])
        with pytest.raises(NothingToUndo, match="jobctl dead redrives show redrive-0000"):
            await latest_edits(system.ledger, operation_id="redrive-0000")
