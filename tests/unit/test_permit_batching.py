"""Jobs whose limit was full lately ask for permits together; others ask at once."""

import asyncio
from collections.abc import Sequence

from switchyard.services.engine.records.limits import LimitSize, PermitDemand
from switchyard.services.engine.runtime.permit_batching import PermitRequestBatcher
from tests.support.eventually import MAX_WAIT

FULL_LIMIT = [PermitDemand("openai", "", LimitSize(concurrency=1))]
OTHER_LIMIT = [PermitDemand("account", "acme", LimitSize(concurrency=1))]


def make_batcher(slots: int = 16) -> PermitRequestBatcher:
    """Return a batcher that lets four jobs of 16 slots wait, and knows FULL_LIMIT as full."""
    batcher = PermitRequestBatcher(slots)
    batcher.mark_full("openai", "")
    return batcher


async def start_asking(
    batcher: PermitRequestBatcher, *demands_of_jobs: Sequence[PermitDemand]
) -> list[asyncio.Task[None]]:
    """Start a task for each of the demands, and let all run as far as they can at once."""
    tasks = [asyncio.create_task(batcher.wait_to_ask(demands)) for demands in demands_of_jobs]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def are_done(tasks: Sequence[asyncio.Task[None]]) -> list[bool]:
    return [each.done() for each in tasks]


async def test_a_job_of_another_limit_asks_at_once() -> None:
    assert are_done(await start_asking(make_batcher(), OTHER_LIMIT)) == [True]


async def test_jobs_of_a_full_limit_wait_until_there_are_four() -> None:
    batcher = make_batcher()
    first = await start_asking(batcher, FULL_LIMIT, FULL_LIMIT, FULL_LIMIT)
    assert are_done(first) == [False] * 3
    assert are_done([*first, *await start_asking(batcher, FULL_LIMIT)]) == [True] * 4
    assert are_done(await start_asking(batcher, FULL_LIMIT)) == [
        False
    ]  # the first of the next batch


async def test_a_job_that_asks_takes_the_waiting_ones_along() -> None:
    batcher = make_batcher()
    assert are_done(await start_asking(batcher, FULL_LIMIT, OTHER_LIMIT)) == [True, True]


async def test_a_job_that_waits_alone_asks_after_a_moment() -> None:
    batcher = make_batcher()
    (waiting,) = await start_asking(batcher, FULL_LIMIT)
    assert not waiting.done()
    await asyncio.wait_for(waiting, MAX_WAIT)


async def test_a_cancelled_job_keeps_no_other_waiting() -> None:
    batcher = make_batcher()
    first, second = await start_asking(batcher, FULL_LIMIT, FULL_LIMIT)
    first.cancel()
    await asyncio.wait_for(second, MAX_WAIT)


async def test_in_a_worker_of_few_slots_no_job_waits() -> None:
    assert are_done(await start_asking(make_batcher(slots=7), FULL_LIMIT)) == [True]


async def test_a_limit_with_room_again_is_asked_at_once() -> None:
    batcher = make_batcher()
    batcher.mark_free(FULL_LIMIT)
    assert are_done(await start_asking(batcher, FULL_LIMIT)) == [True]
