"""Jobs that will hardly find room ask for it together; the others ask at once."""

import asyncio
from collections.abc import Sequence

from switchyard.services.engine.records.limits import LimitSize, PermitDemand
from switchyard.services.engine.runtime.permit_batching import PermitRequestBatcher
from tests.support.eventually import MAX_WAIT

FULL = [PermitDemand("openai", "", LimitSize(concurrency=1))]
OTHER = [PermitDemand("account", "acme", LimitSize(concurrency=1))]


def batcher(slots: int = 16) -> PermitRequestBatcher:
    """Of which four may gather; the limit of FULL is known to be full."""
    made = PermitRequestBatcher(slots)
    made.mark_full("openai", "")
    return made


async def joined(
    crowd: PermitRequestBatcher, *all_needs: Sequence[PermitDemand]
) -> list[asyncio.Task[None]]:
    """Each of these, as far as it comes without waiting for a time."""
    tasks = [asyncio.create_task(crowd.wait_to_ask(needs)) for needs in all_needs]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def gone(tasks: Sequence[asyncio.Task[None]]) -> list[bool]:
    return [each.done() for each in tasks]


async def test_who_may_have_room_asks_at_once() -> None:
    assert gone(await joined(batcher(), OTHER)) == [True]


async def test_those_without_hope_wait_until_there_are_some_of_them() -> None:
    crowd = batcher()
    first = await joined(crowd, FULL, FULL, FULL)
    assert gone(first) == [False] * 3
    assert gone([*first, *await joined(crowd, FULL)]) == [True] * 4
    assert gone(await joined(crowd, FULL)) == [False]  # of the next crowd


async def test_whoever_asks_takes_the_others_along() -> None:
    crowd = batcher()
    assert gone(await joined(crowd, FULL, OTHER)) == [True, True]


async def test_one_that_stays_alone_asks_after_a_moment() -> None:
    crowd = batcher()
    (alone,) = await joined(crowd, FULL)
    assert not alone.done()
    await asyncio.wait_for(alone, MAX_WAIT)


async def test_one_that_gives_up_keeps_nobody_waiting() -> None:
    crowd = batcher()
    first, second = await joined(crowd, FULL, FULL)
    first.cancel()
    await asyncio.wait_for(second, MAX_WAIT)


async def test_a_worker_of_few_slots_gives_none_of_them_to_waiting() -> None:
    assert gone(await joined(batcher(slots=7), FULL)) == [True]


async def test_a_limit_with_room_again_is_asked_at_once() -> None:
    crowd = batcher()
    crowd.mark_free(FULL)
    assert gone(await joined(crowd, FULL)) == [True]
