import pytest

from switchyard.services.access import rate_limit
from switchyard.services.access.rate_limit import RateLimiter


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
    monkeypatch.setattr(rate_limit, "MOST_BUCKETS", 3)
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
