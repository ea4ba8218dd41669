"""Backfills are paused, cancelled, and end at their date or with what may be open."""

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

        async def published() -> int:
            own, _ = await user.system.ledger.bulk_jobs.count_bulk_jobs(operation.id)
            return sum(own.values())

        await eventually(published)
        await bulk_control.pause(user.system.ledger, operation.id)

        async def let_go() -> bool:
            return (
                await bulk_control.require_bulk(user.system.ledger, operation.id)
            ).holder is None

        await eventually(let_go)
        before = await published()
        progress = await user.progress(operation)
        assert progress.published == before  # also the cursor knows of all
        await user.system.wait_until_ready(QUEUE, before)
        await asyncio.sleep(0.5)  # there is no signal for what does not happen
        assert await published() == before
        await bulk_control.resume(user.system.ledger, operation.id)

        async def goes_on() -> bool:
            return await published() > before

        await eventually(goes_on)


async def test_cancelled_its_queued_jobs_never_run(user: BackfillUser) -> None:
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
    last = await user.system.publish("backfill.noop", {"n": -1})
    await user.system.wait_for_state(last, State.SUCCEEDED)
    assert [start.job_id for start in journal.starts] == [last]


async def test_a_source_that_hangs_does_not_keep_it_from_being_cancelled(
    user: BackfillUser,
) -> None:
    operation = await user.start("numbers", {"to": 900, "hangs_at": 30})
    async with user.running():
        await user.system.wait_until_ready(QUEUE, 30)
        async with asyncio.timeout(20):  # the source never goes on
            assert await user.backfills.cancel(operation.id, jobs=True) == 30


async def test_also_a_slow_one_ends_at_its_date(user: BackfillUser) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)
    operation = await user.start("numbers", {"to": 100}, rate=0.01, until=until.isoformat())
    await user.system.start_worker()
    async with asyncio.timeout(10):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published <= 1


async def test_nothing_is_published_after_its_date_when_its_turn_comes_later(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = datetime.now(UTC) + timedelta(seconds=1)

    @asynccontextmanager
    async def late(traffic: HotTraffic, session: BulkSession) -> AsyncIterator[None]:
        while datetime.now(UTC) < until:
            await session.sleep(0.05)
        yield

    monkeypatch.setattr(HotTraffic, "turn", late)
    operation = await user.start("numbers", {"to": 100}, until=until.isoformat())
    async with asyncio.timeout(20):
        assert (await user.run(operation)).state is BulkState.COMPLETED
    assert (await user.progress(operation)).published == 0


async def test_it_ends_at_its_date(user: BackfillUser) -> None:
    await user.system.start_worker()
    # Time enough for the first of them also on a busy machine, and too little for a tenth of all.
    until = datetime.now(UTC) + timedelta(seconds=3)
    operation = await user.start("numbers", {"to": 100_000}, rate=20, until=until.isoformat())
    ended = await user.run(operation)
    progress = await user.progress(operation)
    assert (ended.state, ended.note) == (
        BulkState.COMPLETED,
        "its end date came before the end of the source",
    )
    assert 0 < progress.published < 1_000
    assert progress.jobs == {State.SUCCEEDED: progress.published}


async def test_no_more_of_its_jobs_are_open_than_it_may_have(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 100}, max_open=7, job_type="gated")
    await user.system.start_worker(slots=20)
    async with user.running():
        await eventually(lambda: len(journal.starts) == 7)

        async def waits() -> bool:
            note = (await bulk_control.require_bulk(user.system.ledger, operation.id)).note
            return note == "7 of its jobs are not finished"

        await eventually(waits)
        for start in list(journal.starts):
            journal.release(start.job_id)
        await eventually(lambda: len(journal.starts) == 14)
        own, _ = await user.system.ledger.bulk_jobs.count_bulk_jobs(operation.id)
        assert sum(own.values()) == 14
