"""Backfills make way for other jobs, and say what they wait for."""

import asyncio
import time
from pathlib import Path

import pytest

from switchyard.services.engine.backfill import backfill_run, gate
from switchyard.services.engine.backfill import progress as progress_module
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.records.states import State
from tests.support.backfills import QUEUE, BackfillUser, open_backfills, read_numbers
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with


async def test_a_backfill_keeps_its_queue_between_the_watermarks(user: BackfillUser) -> None:
    system = user.system
    operation = await user.start("numbers", {"to": 500}, low=20, high=60, job_type="gated")
    async with user.running():
        await system.wait_until_ready(QUEUE, 60)

        async def is_waiting() -> bool:
            note = (await bulk_control.require_bulk(system.ledger, operation.id)).note
            return note == f"{QUEUE} holds 60 jobs; goes on at 20"

        await eventually(is_waiting)
        await take_jobs(system, 35)
        await asyncio.sleep(2 * gate.DEPTHS_TTL)  # between the watermarks nothing happens
        assert await system.ready(QUEUE) == 25
        await take_jobs(system, 5)  # to the low watermark: it goes on from there
        await system.wait_until_ready(QUEUE, 60)


async def test_a_backfill_fills_its_queue_to_half_of_the_limit_for_publishers(
    user: BackfillUser,
) -> None:
    """Publishers to an llm queue are refused far below the broker's limit."""
    system = user.system
    queue_marks = {"llm_ok_below": 10, "llm_slow_at": 20, "llm_full_at": 40}
    system.settings = system.settings.model_copy(update=queue_marks)
    operation = await user.start("numbers", {"to": 100}, job_type="gated")
    async with user.running():

        async def is_waiting() -> bool:
            note = (await bulk_control.require_bulk(system.ledger, operation.id)).note
            return note == f"{QUEUE} holds 20 jobs; goes on at 10"

        await eventually(is_waiting)


async def test_samples_are_recorded_also_while_a_backfill_waits(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_run, "SAMPLE_INTERVAL", 0.1)
    operation = await user.start("numbers", {"to": 9}, high=1)
    async with user.running():

        async def has_samples() -> bool:
            record = await bulk_control.require_bulk(user.system.ledger, operation.id)
            return len(record.counts.get("samples", ())) > 3

        await eventually(has_samples)


async def test_a_backfill_that_nobody_runs_says_so(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = await user.start("numbers", {"to": 9})
    assert (await user.progress(operation)).note is None
    monkeypatch.setattr(progress_module, "UNATTENDED_SECONDS", -1)
    note = (await user.progress(operation)).note
    assert note is not None
    assert "is `jobctl scheduler` running?" in note


async def test_a_backfill_goes_by_the_ledgers_clock_wherever_it_runs_or_is_viewed(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own clock, a host two hours ahead would report "nobody runs it" and a wrong rate."""
    operation = await user.start("numbers", {"to": 9})
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 7200)
    await user.system.ledger.job_reads.get("any")  # the clocks are compared
    progress = await user.progress(operation)
    assert progress.note is None
    await user.system.start_worker()
    operation_at_end = await user.run(operation)
    samples = operation_at_end.counts["samples"]
    assert all(abs(sample["at"] - real_time()) < 600 for sample in samples)


async def take_jobs(system: System, count: int) -> None:
    async with system.channel() as channel:
        queue = await channel.get_queue(QUEUE, ensure=False)
        for _ in range(count):
            message = await queue.get()
            await message.ack()


async def test_a_backfill_into_a_full_lane_loses_nothing(
    broker: TestBroker, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_run, "REFUSED_PAUSE", 0.05)
    lanes = lanes_with(max_length={"backfill": 50})
    async with open_backfills(broker, sqlite_url, tmp_path, lanes=lanes) as (system, user):
        operation = await user.start("numbers", {"to": 300}, high=100_000)
        async with user.running():
            await eventually(lambda: system.ready(QUEUE))
            await system.start_worker(slots=8)

            async def is_over() -> bool:
                return (await user.progress(operation)).is_over

            await eventually(is_over, timeout=60)
        assert await read_numbers(system.ledger) == list(range(300))
        assert (await user.progress(operation)).jobs == {State.SUCCEEDED: 300}


async def test_a_backfill_slows_down_while_hot_jobs_wait(user: BackfillUser) -> None:
    system = user.system
    for number in range(gate.HOT_BACKLOG + 1):
        await system.publish("hot.gated", {"n": number})
    operation = await user.start("numbers", {"to": 100_000})
    async with user.running():

        async def says_that_it_is_slow() -> bool:
            note = (await bulk_control.require_bulk(system.ledger, operation.id)).note
            return note == f"slow: {gate.HOT_BACKLOG + 1} hot jobs wait"

        async def count_published() -> int:
            return sum((await system.ledger.bulk_jobs.count_bulk_jobs(operation.id))[0].values())

        async def has_published_more() -> bool:
            return await count_published() >= published_before + 3 * gate.SLOW_BATCH

        await eventually(says_that_it_is_slow)
        began, published_before = time.monotonic(), await count_published()
        await eventually(has_published_more)
        rate = (await count_published() - published_before) / (time.monotonic() - began)
        assert rate < 2 * gate.SLOW_BATCH / gate.SLOW_PAUSE
        await system.start_worker(slots=30)  # it runs all the hot jobs
        await system.wait_until_ready("hot.llm", 0, timeout=30)

        async def is_fast() -> bool:
            return (await user.progress(operation)).published > 1_500

        await eventually(is_fast)


async def test_hot_jobs_overtake_a_backfill_that_fills_every_slot(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with open_backfills(broker, sqlite_url, tmp_path) as (system, user):
        await system.start_worker(slots=4)
        operation = await user.start("numbers", {"to": 100_000})
        async with user.running():
            await eventually(lambda: len(journal.starts) > 200)
            for number in range(6):
                starts_before = len(journal.starts)
                hot_id = await system.publish("hot.noop", {"n": -number})
                await journal.started(hot_id)
                jobs_before_it = next(
                    jobs_before_it
                    for jobs_before_it, start in enumerate(journal.starts[starts_before:])
                    if start.job_id == hot_id
                )
                # A thousand jobs of the backfill are in its queue all the time. Only those that
                # begin while the hot one is recorded and confirmed may come before it.
                assert jobs_before_it < 300
            assert await system.ready(QUEUE) > 500
            assert not (await user.progress(operation)).is_over
