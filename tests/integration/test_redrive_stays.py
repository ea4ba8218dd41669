"""Letters that a redrive leaves in the queue stay in order, unchanged, with a reason."""

import asyncio
from collections.abc import Sequence

import pytest

from switchyard.broker.dead.scan import scanning
from switchyard.broker.message import JobMessage
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, start_purge
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.spec import RedriveSpec, resume_redrive, start_redrive
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.redrives import bury_many, ids, index, indexed, plan, redrive, runner_of
from tests.support.system import lanes_with, open_system


async def test_dry_run_changes_nothing(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_many(system, [f"job-{number}" for number in range(20)])
        before = [
            (letter.id, letter.delivery.body, letter.info) for letter in await system.letters()
        ]
        for _ in range(3):
            tally = await plan(system)
            assert (tally.matched, tally.done) == (20, 20)
            assert tally.notes[0] == "job-0: would go to backfill.noop"
        after = [
            (letter.id, letter.delivery.body, letter.info) for letter in await system.letters()
        ]
        assert after == before
        assert await system.ready("backfill.llm") == 0
        assert await indexed(system, "job-0") == ("waiting", 1, 0)


async def test_the_order_of_letters_that_stay_is_kept(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        # More than a quorum queue sends to a consumer without a prefetch count.
        count = 2_200 if broker.profile == "quorum" else 300
        all_ids = [f"job-{number:04}" for number in range(count)]
        await bury_many(system, all_ids)
        for _ in range(3):
            assert await ids(system) == all_ids

        redriven = all_ids[10:-10:5]
        progress = await redrive(system, LetterFilter(ids=frozenset(redriven)))
        assert progress.redriven == len(redriven)
        staying = sorted(set(all_ids) - set(redriven))
        assert await ids(system) == staying
        purged = staying[::7]
        letter_filter = LetterFilter(ids=frozenset(purged))
        operation = await start_purge(system.ledger, letter_filter, created_by="ann@desk")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts["purged"] == len(purged)
        staying = sorted(set(staying) - set(purged))
        for _ in range(3):
            assert await ids(system) == staying

        assert await system.ready("backfill.llm") == len(redriven)
        first = JobMessage.decode((await system.take("backfill.llm")).body)
        assert first.job_id == redriven[0]


async def test_the_order_is_kept_over_several_batches_while_letters_come(
    broker: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.broker.dead.scan.BATCH_SIZE", 150)
    monkeypatch.setattr("switchyard.broker.dead.scan.QUORUM_BATCH_SIZE", 150)
    async with open_system(broker, sqlite_url) as system:
        all_ids = [f"job-{number:04}" for number in range(1_000)]
        await bury_many(system, all_ids)
        for step in (7, 3):
            newer: list[str] = []
            redriven = all_ids[1:700:step]
            settings = system.settings
            async with scanning(settings.require_amqp_url(), profile=settings.profile) as scan:
                number = 0
                async for letter in scan.letters():
                    number += 1
                    if letter.id in redriven:
                        assert letter.ack()
                    if number % 100 == 0:
                        newer.append(f"new-{step}-{number:04}")
                        await bury_many(system, newer[-1:])
                    if number == 800:
                        break  # the others were fetched, or not, and not looked at
            all_ids = [job_id for job_id in all_ids if job_id not in redriven] + newer

            async def are_all_back(expected: Sequence[str] = tuple(all_ids)) -> bool:
                return await ids(system) == list(expected)

            await eventually(are_all_back)


async def test_limit_takes_the_oldest(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_many(system, ["a", "b", "c", "d"])
        progress = await redrive(system, LetterFilter(ids=frozenset("bcd")), limit=2)
        assert progress.redriven == 2
        assert await ids(system) == ["a", "d"]


async def test_a_letter_whose_job_has_ended_meanwhile_is_dropped_with_a_note(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        await system.start_worker()
        done_id = await system.publish("hot.noop", job_id="done")
        await system.wait_for_state(done_id, State.SUCCEEDED)
        cancelled_id = await system.publish("backfill.noop", job_id="off", delay=3600)
        await system.ledger.jobs.cancel(cancelled_id, 0.0)
        await bury_many(system, ["done", "dead", "off"], "hot.noop")

        dry_run = await plan(system)
        assert (dry_run.dropped, dry_run.done) == (2, 1)
        assert await ids(system) == ["done", "dead", "off"]

        progress = await redrive(system)
        assert (progress.dropped, progress.redriven) == (2, 1)
        assert progress.notes == (
            "done: dropped, the job has succeeded meanwhile",
            "off: dropped, the job has cancelled meanwhile",
        )
        await system.wait_for_state("dead", State.SUCCEEDED)
        assert await system.letters() == []
        assert (await indexed(system, "done"))[0] == "dropped"
        assert journal.runs("done") == 1
        assert journal.runs("off") == 0


@pytest.mark.parametrize("lane", ["backfill", "hot"])
async def test_a_full_lane_leaves_the_other_letters_as_they_were(
    broker: TestBroker, sqlite_url: str, lane: str
) -> None:
    lanes = lanes_with(max_length={lane: 5})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        all_ids = [f"job-{number:03}" for number in range(30)]
        await bury_many(system, all_ids, f"{lane}.noop")
        before = {letter.id: letter.info for letter in await system.letters()}
        spec = RedriveSpec(LetterFilter(), remote=False)
        operation = await start_redrive(system.ledger, spec, created_by="test")

        async def waits_for_room() -> bool:
            record = await bulk_control.require_bulk(system.ledger, operation.id)
            is_waiting = record.note == f"waits for room in {lane}.llm"
            return is_waiting and record.counts["redriven"] == 5

        runner = runner_of(system)
        running = asyncio.create_task(runner.run_one(operation.id))
        await eventually(waits_for_room)
        await bulk_control.pause(system.ledger, operation.id)
        assert (await running).state is BulkState.PAUSED
        assert await system.ready(f"{lane}.llm") == 5

        remaining = await system.letters()
        assert [letter.id for letter in remaining] == all_ids[5:]
        assert {letter.id: letter.info for letter in remaining} == {
            job_id: before[job_id] for job_id in all_ids[5:]
        }
        await index(system)
        for job_id in all_ids[5:]:
            assert await indexed(system, job_id) == ("waiting", 1, 0)

        await system.start_worker()
        await resume_redrive(system.ledger, operation.id)
        assert (await runner.run_one(operation.id)).counts["redriven"] == 30
        await system.wait_until_all(all_ids, State.SUCCEEDED)


async def test_malformed_letter_stays_and_says_why(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        raw = b"\x00\xffnot a job\xfe"
        await system.publish_raw("hot.noop", raw)
        [letter] = await eventually(system.letters)
        for _ in range(2):
            progress = await redrive(system)
            assert (progress.invalid, progress.redriven) == (1, 0)
            assert progress.notes[0].startswith(f"{letter.id}: not redriven: the body is no job")
        [unchanged] = await system.letters()
        assert unchanged.delivery.body == raw


async def test_job_of_an_unknown_type_goes_back_once_its_key_is_mended(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker()
        message = JobMessage(job_id="typo", job_type="nopo", payload={"n": 4})
        await system.wire.publish(message, "hot.nopo")
        await eventually(system.letters)
        assert (await redrive(system)).invalid == 1
        assert (await redrive(system, change=Change(to="hot.noop"))).redriven == 1
        assert (await system.wait_for_state("typo", State.SUCCEEDED)).result == {"n": 4}
