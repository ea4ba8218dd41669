"""Parts of a job's work run side by side, and those under way are finished when another fails."""

from __future__ import annotations

import asyncio

import pytest

from switchyard.services.engine.jobs.bounded_gather import gather_bounded


async def test_all_parts_are_given_in_their_order_and_no_more_than_allowed_run_at_once():
    running, most = 0, 0

    async def part(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - number):  # the first takes longest
            await asyncio.sleep(0)
        running -= 1
        return number

    assert await gather_bounded(map(part, range(10)), at_once=3) == list(range(10))
    assert most == 3
    assert await gather_bounded(map(part, ()), at_once=3) == []


async def test_what_is_under_way_is_finished_after_an_error_and_nothing_else_begins():
    failed, begun, ended = asyncio.Event(), list[int](), list[int]()

    async def part(number: int) -> None:
        begun.append(number)
        if number == 1:
            failed.set()
            raise ValueError("of the second part")
        await failed.wait()
        await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(ValueError, match="of the second part"):
        await gather_bounded(map(part, range(10)), at_once=3)
    assert (begun, sorted(ended)) == ([0, 1, 2], [0, 2])


async def test_parts_under_way_are_cancelled_with_whoever_waits_for_them():
    begun, cancelled = asyncio.Event(), list[int]()

    async def part(number: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    job = asyncio.create_task(gather_bounded(map(part, range(3)), at_once=2))
    await begun.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert sorted(cancelled) == [0, 1]
