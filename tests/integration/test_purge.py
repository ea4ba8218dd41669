"""Purge: the letters that a filter matches are removed; their records and the purge's stay."""

import asyncio
import time
from datetime import timedelta

from switchyard.broker.message import now
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import (
    PurgeHandler,
    PurgeProgress,
    count_letters,
    start_purge,
)
from switchyard.services.engine.ledger.leases import DEAD_SCAN
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.states import DeadLetterState
from switchyard.services.engine.scheduler.duties import bulk_handlers
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.redrives import bury, bury_many, ids, indexed
from tests.support.system import System, open_system

ALL_LETTERS = LetterFilter()


async def begin_purge(
    system: System, letter_filter: LetterFilter = ALL_LETTERS, reason: str | None = None
) -> BulkOperation:
    return await start_purge(system.ledger, letter_filter, created_by="ann@desk", reason=reason)


async def run_purge(system: System, operation: BulkOperation) -> BulkOperation:
    handler = PurgeHandler(system.settings, system.ledger)
    return await BulkRunner(system.ledger, [handler]).run_one(operation.id)


async def test_a_purge_removes_matching_letters_and_keeps_their_records(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_many(system, ["a", "b", "c"])
        letter_filter = LetterFilter(ids=frozenset({"b"}))
        dry_run = await count_letters(system.settings, system.ledger, letter_filter, asyncio.sleep)
        assert dry_run == PurgeProgress(scanned=3, total=3, purged=1)

        async def are_back() -> bool:
            return await ids(system) == ["a", "b", "c"]

        await eventually(are_back)  # a quorum queue takes a moment to have its letters back

        ended = await run_purge(system, await begin_purge(system, letter_filter, "rubbish"))
        assert ended.counts == PurgeProgress(scanned=3, total=3, purged=1).to_json()
        assert await ids(system) == ["a", "c"]
        assert await indexed(system, "b") == ("purged", 1, 0)
        assert await indexed(system, "a") == ("waiting", 1, 0)
        (listed,) = (await system.ledger.bulk.list_bulk("purge")).items
        assert (listed.created_by, listed.reason, listed.title, listed.state) == (
            "ann@desk",
            "rubbish",
            "b",
            BulkState.COMPLETED,
        )
        assert listed.spec == {"filter": {"ids": ["b"]}}


async def test_a_letter_that_died_after_the_purge_began_stays(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury(system, "before")
        operation = await begin_purge(system)
        await bury(system, "after", died=now() + timedelta(minutes=1))
        assert (await run_purge(system, operation)).counts["purged"] == 1
        assert await ids(system) == ["after"]


async def test_a_purge_whose_process_was_killed_is_completed_by_a_scheduler(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        all_ids = [f"job-{number:03}" for number in range(450)]
        await bury_many(system, all_ids)
        operation = await begin_purge(system)
        # As if it was killed after marking these, and before acknowledging them.
        await system.ledger.dead_letters.mark_dead_state(
            all_ids[:200], DeadLetterState.PURGED, time.time()
        )
        runner = BulkRunner(
            system.ledger, bulk_handlers(system.settings, system.registry, system.ledger, [])
        )
        running = asyncio.create_task(runner.run())

        async def is_completed() -> bool:
            record = await bulk_control.require_bulk(system.ledger, operation.id)
            return record.state is BulkState.COMPLETED

        await eventually(is_completed)
        runner.stop()
        await running
        assert await ids(system) == []
        assert {(await indexed(system, letter_id))[0] for letter_id in all_ids} == {"purged"}


async def test_a_cancelled_purge_leaves_the_letters(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury_many(system, ["a", "b"])
        operation = await begin_purge(system)
        async with system.ledger.leases.holding_lease(DEAD_SCAN):
            running = asyncio.create_task(run_purge(system, operation))

            async def is_waiting() -> bool:
                record = await bulk_control.require_bulk(system.ledger, operation.id)
                return record.state is BulkState.WAITING and record.note is not None

            await eventually(is_waiting)
            await bulk_control.cancel(system.ledger, operation.id)
            ended = await running
        assert (ended.state, ended.counts) == (BulkState.CANCELLED, {})
        assert await ids(system) == ["a", "b"]
        assert await indexed(system, "a") == ("waiting", 1, 0)
