"""Redrive operations: canary, halt, rate, full lanes, pause, several at once, second deaths."""

import asyncio

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.control import BulkConflict
from switchyard.services.engine.dead.changes import Change, InvalidRedrive
from switchyard.services.engine.dead.letters import LetterFilter, cause_of_letter
from switchyard.services.engine.dead.scan import wait_at_most
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.plan import plan_redrive
from switchyard.services.engine.redrive.spec import (
    RedriveConflict,
    RedriveProgress,
    RedriveSpec,
    resume_redrive,
    start_redrive,
)
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.redrives import (
    EVERYTHING,
    bury,
    bury_all,
    current,
    ids,
    names,
    run,
    running,
    start,
)
from tests.support.system import System, lanes_with, open_system

# --- the whole of it --------------------------------------------------------------------------


async def test_a_redrive_sends_what_fits_and_keeps_a_record(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker()
        all_ids = names(700)
        await bury_all(system, all_ids[::2], cause="no route to a")
        await bury_all(system, all_ids[1::2], cause="disk full")
        [first, *_] = await system.letters()
        group = cause_of_letter(first).fingerprint
        operation = await start_redrive(
            system.ledger,
            RedriveSpec(LetterFilter(group=group)),
            created_by="ann",
            reason="the route is back",
        )
        assert (operation.state, operation.created_by) == (BulkState.WAITING, "ann")

        ended = await run(system, operation)
        assert (ended.state, ended.reason) == (BulkState.COMPLETED, "the route is back")
        assert ended.finished_at is not None
        progress = RedriveProgress.from_operation(ended)
        assert (progress.total, progress.redriven, progress.invalid) == (350, 350, 0)
        await system.wait_until_all(all_ids[::2], State.SUCCEEDED)
        assert await ids(system) == all_ids[1::2]
        counts = await system.ledger.redrives.settle_redriven(operation.id)
        assert counts == {"succeeded": 350}


async def test_letters_that_are_invalid_or_need_no_redrive_are_counted(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, ["a", "b"])
        await bury_all(system, ["c"], "backfill.noop")
        await system.ledger.jobs.record(
            NewJob(JobMessage(job_id="d", job_type="noop", payload={}), "hot", "llm", "hot.noop")
        )
        await system.ledger.jobs.cancel("d", 1.0)
        await bury_all(system, ["d"], "backfill.noop")
        change = Change(values={"payload.steps": "no list"})
        ended = await run(system, await start(system, change=change))
        progress = RedriveProgress.from_operation(ended)
        assert (progress.redriven, progress.invalid, progress.dropped) == (1, 2, 1)
        assert any("steps: Input should be a valid list" in note for note in progress.notes)
        assert await ids(system) == ["a", "b"]


async def test_limit_takes_the_oldest(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        all_ids = await bury_all(system, names(300), recorded=False)
        ended = await run(system, await start(system, limit=250))
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            250,
        )
        assert await ids(system) == all_ids[250:]
        assert await system.ready("backfill.llm") == 250


async def test_a_job_that_dies_again_is_left_alone(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        all_ids = await bury_all(system, names(30), steps=["permanent"])
        # The short hold makes several passes, which find the letters that died again.
        operation = await start(system, rate=20, letter_filter=LetterFilter(job_type="scripted"))
        ended = await run(system, operation, hold=0.3)
        assert ended.state is BulkState.COMPLETED
        await system.wait_until_all(all_ids, State.DEAD)
        assert {journal.runs(job_id) for job_id in all_ids} == {1}
        assert RedriveProgress.from_operation(ended).redriven == 30

        async def have_all_failed() -> bool:
            return await system.ledger.redrives.settle_redriven(operation.id) == {"failed": 30}

        await eventually(have_all_failed)


# --- canary and halt --------------------------------------------------------------------------


async def test_canary_that_succeeds_lets_the_others_go(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        all_ids = await bury_all(system, names(40), "backfill.gated")
        operation = await start(system, canary=3)
        async with running(system, operation) as task:
            await system.wait_until_ready("backfill.llm", 3)
            await system.start_worker()
            await journal.started(*all_ids[:3])
            # None of the others has been sent while the canary is out.
            assert (await current(system, operation)).note == "canary: 0 of 3 have succeeded"
            assert len(journal.starts) == 3
            journal.release_all()
            assert (await asyncio.wait_for(task, 30)).state is BulkState.COMPLETED
        await system.wait_until_all(all_ids, State.SUCCEEDED)


async def test_a_canary_that_fails_stops_the_others(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        all_ids = await bury_all(system, names(40), steps=["permanent"])
        operation = await start(system, canary=3)
        ended = await run(system, operation)
        assert ended.state is BulkState.HALTED
        assert ended.note is not None
        assert "failed again" in ended.note
        assert f"jobctl dead redrives show {operation.id}" in ended.note
        assert [journal.runs(job_id) for job_id in all_ids] == [1] * 3 + [0] * 37
        assert (await ids(system))[:37] == all_ids[3:]

        # A resumed redrive sends as many again.
        await resume_redrive(system.ledger, operation.id)
        assert (await run(system, operation)).state is BulkState.HALTED
        assert [journal.runs(job_id) for job_id in all_ids] == [1] * 6 + [0] * 34


async def test_a_failure_between_a_halt_and_its_resumption_halts_no_more(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker()
        await bury(system, "late", "hot.held_script", {"steps": ["permanent"]})
        await bury(system, "early", "hot.scripted", {"steps": ["permanent"]})
        await bury(system, "good", "hot.scripted", {"steps": ["done"]})
        operation = await start(system, canary=2)
        ended = await run(system, operation)
        assert (ended.state, journal.runs("good")) == (BulkState.HALTED, 0)
        await journal.started("late")
        journal.release("late")
        await system.wait_until_all(["late"], State.DEAD)

        await resume_redrive(system.ledger, operation.id)
        ended = await run(system, operation)
        assert (ended.state, ended.note) == (BulkState.COMPLETED, "2 failed again")
        await system.wait_until_all(["good"], State.SUCCEEDED)


async def test_too_many_failures_halt_a_redrive(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        good = await bury_all(system, names(100, "good"))
        bad = await bury_all(system, names(1_000, "bad"), steps=["permanent"])
        operation = await start(system, halt_on=0.2)
        ended = await run(system, operation)
        assert ended.state is BulkState.HALTED
        progress = RedriveProgress.from_operation(ended)
        assert progress.failed >= 0.2 * (progress.succeeded + progress.failed)
        # How many may be under way at once bounds how many fail.
        assert 100 < progress.redriven <= 100 + 25 + 200
        await system.wait_until_all(good, State.SUCCEEDED)
        assert len([job_id for job_id in bad if not journal.runs(job_id)]) >= 600


async def test_few_failures_do_not_halt_a_redrive(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker()
        await bury_all(system, names(2, "bad"), steps=["permanent"])
        good = await bury_all(system, names(60, "good"))
        ended = await run(system, await start(system, halt_on=0.5))
        assert (ended.state, ended.note) == (BulkState.COMPLETED, "2 failed again")
        await system.wait_until_all(good, State.SUCCEEDED)


# --- rate, room, pause ------------------------------------------------------------------------


async def test_a_low_rate_does_not_keep_others_from_the_queue(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, [f"slow-{n}" for n in range(3)])
        operation = await start(system, rate=0.01)
        async with running(system, operation):

            async def is_waiting() -> bool:
                record = await bulk_control.require_bulk(system.ledger, operation.id)
                return record.note == "sends 36 an hour, by its rate"

            await eventually(is_waiting)
            plan = await plan_redrive(
                system.settings,
                system.registry,
                system.ledger,
                RedriveSpec(EVERYTHING),
                wait=wait_at_most(10),
            )
            assert plan.matched == 3
            await system.ledger.bulk.set_bulk_limits(operation.id, {"rate": None})
            await system.wait_until_ready("backfill.llm", 3)


async def test_letters_without_a_queue_stay_and_the_note_says_what_to_type(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        letters = await bury_all(system, names(3))
        async with system.channel() as channel:
            await channel.queue_delete("backfill.llm")
        operation = await start(system)
        async with running(system, operation):

            async def is_noted() -> bool:
                record = await bulk_control.require_bulk(system.ledger, operation.id)
                return "no queue 'backfill.llm'" in (record.note or "")

            await eventually(is_noted)
            record = await bulk_control.require_bulk(system.ledger, operation.id)
            assert "run `jobctl topology apply`" in (record.note or "")
        assert {letter.id for letter in await system.letters()} == set(letters)


async def test_the_rate_of_a_running_redrive_can_be_changed(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, names(300), recorded=False)
        operation = await start(system, rate=5)
        async with running(system, operation) as task:
            await system.wait_until_ready("backfill.llm", 3)
            assert not task.done()
            await system.ledger.bulk.set_bulk_limits(operation.id, {"rate": None})
            assert (await asyncio.wait_for(task, 20)).state is BulkState.COMPLETED
        assert await system.ready("backfill.llm") == 300


@pytest.mark.parametrize("lane", ["backfill", "hot"])
async def test_full_lane_is_waited_for(broker: TestBroker, sqlite_url: str, lane: str) -> None:
    lanes = lanes_with(max_length={lane: 20})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        all_ids = await bury_all(system, names(60), f"{lane}.noop")
        operation = await start(system)
        async with running(system, operation, hold=1) as task:

            async def is_noted() -> bool:
                record = await current(system, operation)
                return (record.state, record.note) == (
                    BulkState.WAITING,
                    f"waits for room in {lane}.llm",
                )

            await eventually(is_noted)
            assert await system.ready(f"{lane}.llm") == 20
            await system.start_worker()
            assert (await asyncio.wait_for(task, 40)).state is BulkState.COMPLETED
        await system.wait_until_all(all_ids, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in all_ids} == {1}
        assert await ids(system) == []


async def test_a_pause_leaves_letters_and_a_resume_sends_them(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        all_ids = await bury_all(system, names(200), recorded=False)
        operation = await start(system, rate=50)
        async with running(system, operation) as task:
            await eventually(lambda: _has_queued(system, 20))
            await bulk_control.pause(system.ledger, operation.id)
            assert (await asyncio.wait_for(task, MAX_WAIT)).state is BulkState.PAUSED
        sent = await system.ready("backfill.llm")
        assert 20 <= sent < 200
        assert await ids(system) == all_ids[sent:]
        with pytest.raises(RedriveConflict, match="is paused and takes some"):
            await start(system)

        await resume_redrive(system.ledger, operation.id)
        await system.ledger.bulk.set_bulk_limits(operation.id, {"rate": None})
        ended = await run(system, operation)
        assert (ended.state, RedriveProgress.from_operation(ended).redriven) == (
            BulkState.COMPLETED,
            200,
        )
        assert await system.ready("backfill.llm") == 200


async def _has_queued(system: System, count: int) -> bool:
    return await system.ready("backfill.llm") >= count


async def test_cancelled_redrive_is_over(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, names(100), recorded=False)
        operation = await start(system, rate=5)
        async with running(system, operation) as task:
            await bulk_control.cancel(system.ledger, operation.id)
            assert (await asyncio.wait_for(task, MAX_WAIT)).state is BulkState.CANCELLED
        with pytest.raises(BulkConflict, match="is over"):
            await resume_redrive(system.ledger, operation.id)
        assert (await run(system, await start(system))).state is BulkState.COMPLETED


# --- several at once --------------------------------------------------------------------------


async def test_two_redrives_of_different_letters_both_send_all(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_all(system, names(400, "a"), "backfill.noop", recorded=False)
        await bury_all(system, names(400, "b"), "backfill.scripted", recorded=False)
        operations = [
            await start(system, LetterFilter(job_type=name)) for name in ("noop", "scripted")
        ]
        ended = await asyncio.gather(*(run(system, operation) for operation in operations))
        assert [RedriveProgress.from_operation(operation).redriven for operation in ended] == [
            400,
            400,
        ]
        assert await system.ready("backfill.llm") == 800
        assert await ids(system) == []


async def test_an_expression_without_an_end_halts_its_redrive_alone(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_all(system, names(3, "a"), "hot.noop")
        spec = RedriveSpec(EVERYTHING, Change(jq="def f: f; f"))
        ended = await run(system, await start_redrive(system.ledger, spec, created_by="test"))
        assert (ended.state, "took more than 2 s" in str(ended.note)) == (BulkState.HALTED, True)
        assert len(await ids(system)) == 3


async def test_a_redrive_of_the_same_letters_is_refused(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        answers = await asyncio.gather(
            *(start(system, LetterFilter(lane="hot")) for _ in range(5)), return_exceptions=True
        )
        assert sum(isinstance(answer, BulkOperation) for answer in answers) == 1
        assert sum(isinstance(answer, RedriveConflict) for answer in answers) == 4
        with pytest.raises(RedriveConflict, match="dead redrives cancel"):
            await start(system, LetterFilter(reason="expired"))
        await start(system, LetterFilter(lane="backfill"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RedriveSpec(EVERYTHING, canary=0), "canary must be 1 or more"),
        (RedriveSpec(EVERYTHING, halt_on=20), "halt_on"),
        (RedriveSpec(EVERYTHING, Change(to="nowhere")), "lane"),
        (RedriveSpec(EVERYTHING, Change(jq=".a +")), "jq"),
    ],
)
async def test_a_senseless_redrive_is_refused_at_once(
    broker310: TestBroker, sqlite_url: str, spec: RedriveSpec, message: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        with pytest.raises(InvalidRedrive, match=message):
            await start_redrive(system.ledger, spec, created_by="test")
        assert (await system.ledger.bulk.list_bulk()).items == ()
