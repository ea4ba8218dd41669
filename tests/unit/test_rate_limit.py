import asyncio

import pytest

from switchyard.services.engine.access import rate_limit
from switchyard.services.engine.access.rate_limit import RateLimitedCall, RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(2, 3, clock=clock)
    assert [limiter.take("one").allowed for _ in range(4)] == [True, True, True, False]
    clock.now += 0.4
    assert not limiter.take("one").allowed
    clock.now += 0.1
    assert limiter.take("one").allowed
    assert not limiter.take("one").allowed


def test_clients_do_not_share_a_bucket() -> None:
    limiter = RateLimiter(1, 1, clock=Clock())
    assert limiter.take("one").allowed
    assert limiter.take("two").allowed
    assert not limiter.take("one").allowed


def test_an_allowance_tells_what_is_left_and_when_to_come_again() -> None:
    clock = Clock()
    limiter = RateLimiter(0.5, 2, clock=clock)
    first = limiter.take("one")
    assert (first.limit, first.remaining, first.reset_after) == (2, 1, 2.0)
    limiter.take("one")
    refused = limiter.take("one")
    assert (refused.remaining, refused.retry_after, refused.reset_after) == (0, 2.0, 4.0)
    clock.now += refused.retry_after
    assert limiter.take("one").allowed


def test_a_bucket_holds_no_more_than_its_burst() -> None:
    clock = Clock()
    limiter = RateLimiter(10, 2, clock=clock)
    limiter.take("one")
    clock.now += 3600
    assert [limiter.take("one").allowed for _ in range(3)] == [True, True, False]


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    clock = Clock()
    limiter = RateLimiter(1, 2, clock=clock)
    limiter.take("one")
    clock.now -= 50
    assert limiter.take("one").allowed


def test_clients_that_were_not_seen_for_long_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limit, "MAX_BUCKETS", 3)
    limiter = RateLimiter(1, 1, clock=Clock())
    for client in ("one", "two", "three", "one", "four"):
        limiter.take(client)
    assert len(limiter) == 3
    assert limiter.take("two").allowed
    assert not limiter.take("one").allowed


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_limit_that_allows_nothing_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        RateLimiter(rate, burst)


class Finding:
    """What is found, and how often it was looked for."""

    def __init__(self) -> None:
        self.times = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def find(self) -> int:
        self.times += 1
        await self.may_end.wait()
        return self.times


async def test_who_asks_too_often_gets_what_was_found_last() -> None:
    now = 0.0
    finding = Finding()
    rationed = RateLimitedCall(finding.find, 1.0, 3, clock=lambda: now)
    assert [await rationed.get() for _ in range(4)] == [1, 2, 3, 3]
    now = 1.0
    assert [await rationed.get() for _ in range(2)] == [4, 4]


async def test_all_who_ask_at_once_get_the_same() -> None:
    finding = Finding()
    finding.may_end.clear()
    rationed = RateLimitedCall(finding.find, 1.0, 3)
    asked = [asyncio.create_task(rationed.get()) for _ in range(20)]
    await asyncio.sleep(0)
    asked[0].cancel()  # for the others it is found all the same
    finding.may_end.set()
    assert set(await asyncio.gather(*asked[1:])) == {1}


async def test_what_can_not_be_found_is_looked_for_again() -> None:
    found = iter((OSError("away"), None))

    async def find() -> str:
        if (error := next(found)) is not None:
            raise error
        return "found"

    rationed = RateLimitedCall(find, 1.0, 3)
    with pytest.raises(OSError, match="away"):
        await rationed.get()
    assert await rationed.get() == "found"
