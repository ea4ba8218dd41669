"""Parts of a job's work run side by side, and running ones finish when another fails."""

from __future__ import annotations

import asyncio

import pytest

from switchyard.services.engine.jobs.bounded_gather import gather_bounded


async def test_results_keep_their_order_and_only_so_many_parts_run_at_once():
    running, most_running = 0, 0

    async def part(number: int) -> int:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        for _ in range(10 - number):  # the first takes longest
            await asyncio.sleep(0)
        running -= 1
        return number

    assert await gather_bounded(map(part, range(10)), at_once=3) == list(range(10))
    assert most_running == 3
    assert await gather_bounded(map(part, ()), at_once=3) == []


async def test_after_an_error_running_parts_finish_and_no_other_starts():
    failed, started, ended = asyncio.Event(), list[int](), list[int]()

    async def part(number: int) -> None:
        started.append(number)
        if number == 1:
            failed.set()
            raise ValueError("of the second part")
        await failed.wait()
        await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(ValueError, match="of the second part"):
        await gather_bounded(map(part, range(10)), at_once=3)
    assert (started, sorted(ended)) == ([0, 1, 2], [0, 2])


async def test_cancelling_the_gathering_cancels_its_running_parts():
    started, cancelled = asyncio.Event(), list[int]()

    async def part(number: int) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    job = asyncio.create_task(gather_bounded(map(part, range(3)), at_once=2))
    await started.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert sorted(cancelled) == [0, 1]
