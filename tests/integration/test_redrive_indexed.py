"""A few letters of a long `jobs.dead` are redriven from the index, and taken out of it later."""

import asyncio
from datetime import timedelta

import pytest

from switchyard.broker.lanes import DEAD_QUEUE
from switchyard.broker.message import now
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead import indexed
from switchyard.services.engine.dead.indexed import LeftoverRemover
from switchyard.services.engine.dead.indexing import reindex
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, start_purge
from switchyard.services.engine.ledger.redrives import RedriveRepository
from switchyard.services.engine.monitoring.lane_report import count_unlisted_letters
from switchyard.services.engine.records.requests import LeftoverLetter
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.spec import RedriveProgress
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.redrives import (
    bury,
    bury_all,
    current,
    ids,
    names,
    plan,
    redrive,
    run,
    runner_of,
    start,
)
from tests.support.redrives import indexed as read_index_entry
from tests.support.system import System, lanes_with, open_system

FEW, MANY = names(4, "few"), names(26, "many")
"""Ids of letters: those that are redriven, and the others."""
IN_ORDER = [*MANY[:13], *FEW, *MANY[13:]]
FEW_FILTER = LetterFilter(ids=frozenset(FEW))


@pytest.fixture(autouse=True)
def short_queue_counts_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed, "MIN_QUEUE", 20)


async def count_queued(system: System) -> int:
    return await system.ready(DEAD_QUEUE)


async def read_leftovers(system: System) -> set[str]:
    return {letter.letter_id for letter in await system.ledger.redrives.leftover_letters()}


async def remove_leftovers(system: System) -> None:
    await LeftoverRemover(system.settings, system.ledger).run()


async def redrive_few(system: System) -> None:
    """Redrive four of thirty letters; all thirty are still in the queue."""
    await bury_all(system, IN_ORDER)
    assert (await redrive(system, FEW_FILTER)).redriven == len(FEW)
    assert await system.ready("backfill.llm") == len(FEW)
    assert await count_queued(system) == len(IN_ORDER)
    assert await read_leftovers(system) == set(FEW)
    assert await count_unlisted_letters(system.settings, system.ledger) == 0


async def test_redriven_letters_are_taken_out_later_and_the_others_keep_their_order(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url, lanes=lanes_with()) as system:
        await redrive_few(system)
        assert {(await read_index_entry(system, letter_id))[0] for letter_id in FEW} == {"redriven"}
        await remove_leftovers(system)
        await eventually(lambda: _has_letters(system, MANY))
        assert await read_leftovers(system) == set()
        assert await count_unlisted_letters(system.settings, system.ledger) == 0
        await system.start_worker(slots=8)
        await system.wait_until_all(FEW, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in FEW} == {1}


async def _has_letters(system: System, expected: list[str]) -> bool:
    return await ids(system) == expected


async def test_a_scan_of_the_queue_passes_over_redriven_letters(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, lanes=lanes_with()) as system:
        await redrive_few(system)
        planned = await plan(system)
        assert (planned.matched, planned.dropped) == (len(MANY), 0)
        assert await read_leftovers(system) == set()  # the plan went through all of the queue
        assert await count_queued(system) == len(MANY)
        assert (await redrive(system)).redriven == len(MANY)
        assert await count_queued(system) == 0
        await system.start_worker(slots=8)
        await system.wait_until_all(IN_ORDER, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in IN_ORDER} == {1}


async def test_a_purge_and_a_reindex_leave_redriven_letters_alone(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, lanes=lanes_with()) as system:
        await redrive_few(system)
        reindexed = await reindex(system.settings, system.ledger, system.registry)
        assert (reindexed.letters, reindexed.dropped) == (len(MANY), 0)
        assert await read_index_entry(system, FEW[0]) == ("redriven", 1, 0)

        await bury_all(system, names(10, "more"))
        assert (await redrive(system, LetterFilter(ids=frozenset(names(2, "more"))))).redriven == 2
        assert await read_leftovers(system) == set(names(2, "more"))
        operation = await start_purge(system.ledger, LetterFilter(), created_by="test")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts["purged"] == len(MANY) + 8
        assert await count_queued(system) == 0
        assert (await read_index_entry(system, "more-0000"))[0] == "redriven"
        assert (await read_index_entry(system, "more-0009"))[0] == "purged"
        assert await count_unlisted_letters(system.settings, system.ledger) == 0


async def test_a_letter_that_died_again_waits_and_only_the_earlier_one_is_taken_out(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, lanes=lanes_with()) as system:
        await redrive_few(system)
        [job_id, *_] = FEW
        later = now() + timedelta(seconds=1)
        await bury(system, job_id, "backfill.scripted", {"steps": ["done"]}, redrives=1, died=later)
        assert await read_index_entry(system, job_id) == ("waiting", 1, 1)
        assert await count_unlisted_letters(system.settings, system.ledger) == 0
        second_redrive = await redrive(system, LetterFilter(ids=frozenset([job_id])))
        assert second_redrive.redriven == 1
        assert LeftoverLetter(job_id, 1, 2) in await system.ledger.redrives.leftover_letters()
        await bury(system, job_id, "backfill.scripted", {"steps": ["done"]}, redrives=2, died=later)
        assert await count_queued(system) == len(IN_ORDER) + 2
        await remove_leftovers(system)
        assert await count_queued(system) == len(MANY) + 1
        assert await read_index_entry(system, job_id) == ("waiting", 1, 2)
        assert await count_unlisted_letters(system.settings, system.ledger) == 0


async def test_letters_that_the_queue_has_lost_are_not_sent_from_the_index(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, lanes=lanes_with()) as system:
        await bury_all(system, IN_ORDER)
        lost = await system.take(DEAD_QUEUE)
        assert lost.message_id == IN_ORDER[0]
        letter_filter = LetterFilter(ids=frozenset([IN_ORDER[0], *FEW]))
        assert (await redrive(system, letter_filter)).redriven == len(FEW)
        assert await read_leftovers(system) == set()
        assert await count_queued(system) == len(MANY) - 1


async def test_a_redrive_that_is_cut_off_before_its_record_sends_no_second_generation(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_redriven = RedriveRepository.record_redriven
    is_called = asyncio.Event()

    async def call_without_end(*_: object) -> None:
        is_called.set()
        await asyncio.get_running_loop().create_future()

    async with open_system(broker310, sqlite_url, lanes=lanes_with()) as system:
        await bury_all(system, IN_ORDER)
        monkeypatch.setattr(RedriveRepository, "record_redriven", call_without_end)
        operation = await start(system, FEW_FILTER)
        task = asyncio.create_task(runner_of(system).run_one(operation.id))
        await is_called.wait()
        task.cancel()
        await asyncio.wait([task])
        assert await read_leftovers(system) == set()
        assert (await read_index_entry(system, FEW[0]))[0] == "waiting"
        assert await system.ready("backfill.llm") == len(FEW)

        monkeypatch.setattr(RedriveRepository, "record_redriven", record_redriven)
        holder = (await current(system, operation)).holder
        if holder is not None:
            await system.ledger.bulk.release_bulk(operation.id, holder)
        ended = await run(system, operation)
        assert RedriveProgress.from_operation(ended).redriven == len(FEW)
        assert await read_leftovers(system) == set(FEW)
        await remove_leftovers(system)
        assert await count_queued(system) == len(MANY)
        await system.start_worker(slots=8)
        await system.wait_until_all(FEW, State.SUCCEEDED)
        assert {journal.runs(job_id) for job_id in FEW} == {1}
