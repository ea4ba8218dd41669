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


def test_an_allowance_has_the_remaining_calls_and_the_wait() -> None:
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


def test_the_clients_seen_longest_ago_are_forgotten(
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


class ControlledSearch:
    """A search whose result is its number of calls, and which ends when the test says so."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def find(self) -> int:
        self.calls += 1
        await self.may_end.wait()
        return self.calls


async def test_a_call_over_the_rate_gets_the_last_result() -> None:
    now = 0.0
    search = ControlledSearch()
    limited_call = RateLimitedCall(search.find, 1.0, 3, clock=lambda: now)
    assert [await limited_call.get() for _ in range(4)] == [1, 2, 3, 3]
    now = 1.0
    assert [await limited_call.get() for _ in range(2)] == [4, 4]


async def test_simultaneous_calls_share_one_result() -> None:
    search = ControlledSearch()
    search.may_end.clear()
    limited_call = RateLimitedCall(search.find, 1.0, 3)
    tasks = [asyncio.create_task(limited_call.get()) for _ in range(20)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # the search goes on for the others
    search.may_end.set()
    assert set(await asyncio.gather(*tasks[1:])) == {1}


async def test_a_failed_call_is_repeated() -> None:
    results = iter((OSError("away"), None))

    async def find() -> str:
        if (error := next(results)) is not None:
            raise error
        return "found"

    limited_call = RateLimitedCall(find, 1.0, 3)
    with pytest.raises(OSError, match="away"):
        await limited_call.get()
    assert await limited_call.get() == "found"
