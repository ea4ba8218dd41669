"""Pausing and cancelling backfills, their end date, and their limit of open jobs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import State
from tests.support.backfills import QUEUE, BackfillUser
from tests.support.eventually import eventually
from tests.support.jobs import journal


async def test_pause_means_no_further_publish_within_a_second(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 100_000}, rate=400, high=9_000)
    async with user.running():

        async def count_published() -> int:
            own_jobs, _ = await user.system.ledger.bulk_jobs.count_bulk_jobs(operation.id)
            return sum(own_jobs.values())

        await eventually(count_published)
        await bulk_control.pause(user.system.ledger, operation.id)

        async def is_released() -> bool:
            return (
                await bulk_control.require_bulk(user.system.ledger, operation.id)
            ).holder is None

        await eventually(is_released)
        published_at_pause = await count_published()
        progress = await user.progress(operation)
        assert progress.published == published_at_pause  # so does the cursor
        await user.system.wait_until_ready(QUEUE, published_at_pause)
        await asyncio.sleep(0.5)  # there is no signal for what does not happen
        assert await count_published() == published_at_pause
        await bulk_control.resume(user.system.ledger, operation.id)

        async def has_resumed() -> bool:
            return await count_published() > published_at_pause

        await eventually(has_resumed)


async def test_queued_jobs_of_a_cancelled_backfill_never_run(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 600})
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 600)
        assert await user.backfills.cancel(operation.id, jobs=True) == 600
    progress = await user.progress(operation)
    assert progress.operation.state is BulkState.CANCELLED
    assert progress.jobs == {State.CANCELLED: 600}
    assert (progress.done, progress.finished) == (0, 0)
    await user.system.start_worker()
    await user.system.wait_until_ready(QUEUE, 0, timeout=30)
    last_id = await user.system.publish("backfill.noop", {"n": -1})
    await user.system.wait_for_state(last_id, State.SUCCEEDED)
    assert [start.job_id for start in journal.starts] == [last_id]


async def test_a_backfill_whose_source_hangs_can_be_cancelled(
    user: BackfillUser,
) -> None:
    operation = await user.start("numbers", {"to": 900, "hangs_at": 30})
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 30)
        async with asyncio.timeout(20):  # the source never goes on
            assert await user.backfills.cancel(operation.id, jobs=True) == 30


async def test_a_slow_backfill_ends_at_its_end_date(user: BackfillUser) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)
    operation = await user.start("numbers", {"to": 100}, rate=0.01, until=until.isoformat())
    await user.system.start_worker()
    async with asyncio.timeout(10):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published <= 1


async def test_a_backfill_whose_turn_comes_after_its_end_date_publishes_nothing(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)

    @asynccontextmanager
    async def wait_for_end_date(traffic: HotTraffic, session: BulkSession) -> AsyncIterator[None]:
        while datetime.now(UTC) < until:
            await session.sleep(0.05)
        yield

    monkeypatch.setattr(HotTraffic, "turn", wait_for_end_date)
    operation = await user.start("numbers", {"to": 100}, until=until.isoformat())
    async with asyncio.timeout(20):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published == 0


async def test_a_backfill_ends_at_its_end_date(user: BackfillUser) -> None:
    await user.system.start_worker()
    # Long enough for the first jobs even on a busy machine; far too short for all at 20 a second.
    until = datetime.now(UTC) + timedelta(seconds=3)
    operation = await user.start("numbers", {"to": 100_000}, rate=20, until=until.isoformat())
    operation_at_end = await user.run(operation)
    progress = await user.progress(operation)
    assert (operation_at_end.state, operation_at_end.note) == (
        BulkState.COMPLETED,
        "its end date came before the end of the source",
    )
    assert 0 < progress.published < 1_000
    assert progress.jobs == {State.SUCCEEDED: progress.published}


async def test_a_backfill_has_at_most_max_open_jobs_open(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 100}, max_open=7, job_type="gated")
    await user.system.start_worker(slots=20)
    async with user.running():
        await eventually(lambda: len(journal.starts) == 7)

        async def is_waiting() -> bool:
            note = (await bulk_control.require_bulk(user.system.ledger, operation.id)).note
            return note == "7 of its jobs are not finished"

        await eventually(is_waiting)
        for start in list(journal.starts):
            journal.release(start.job_id)
        await eventually(lambda: len(journal.starts) == 14)
        own_jobs, _ = await user.system.ledger.bulk_jobs.count_bulk_jobs(operation.id)
        assert sum(own_jobs.values()) == 14
