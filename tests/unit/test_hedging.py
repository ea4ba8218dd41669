"""Hedged requests: sent only for late calls, within a budget, and the slower one is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.llm.hedges import MAX_BURST, MIN_CALLS, Hedges
from tests.support.eventually import MAX_WAIT, eventually

SendRequest = Callable[[OutputStream], Coroutine[Any, Any, str]]


class ControlledRequests:
    """Requests whose answers begin when the test says so."""

    def __init__(self) -> None:
        self.begin: dict[str, asyncio.Event] = {}
        self.sent: list[str] = []
        self.cancelled: list[str] = []

    def make(self, name: str, error: Exception | None = None) -> SendRequest:
        begin = self.begin[name] = asyncio.Event()

        async def send(output: OutputStream) -> str:
            self.sent.append(name)
            output.begin()
            try:
                await begin.wait()
                if error is not None:
                    raise error
                output.write(f"{name} begins")
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            return name

        return send


@pytest.fixture
def requests() -> ControlledRequests:
    return ControlledRequests()


def make_hedges(share: float = 0.5, calls: int = 10) -> Hedges:
    hedges = Hedges(share)
    for _ in range(MIN_CALLS):
        hedges.observe_latency(0.01)
    for _ in range(calls):
        hedges.next_hedge_delay()
    return hedges


async def race(
    hedges: Hedges,
    requests: ControlledRequests,
    delay: float = 0.01,
    *,
    first_fails: Exception | None = None,
    second_fails: Exception | None = None,
) -> str:
    first, second = requests.make("first", first_fails), requests.make("second", second_fails)
    return await asyncio.wait_for(hedges.race(delay, None, first, second), MAX_WAIT)


async def await_sent(requests: ControlledRequests, *names: str) -> None:
    await eventually(lambda: requests.sent == list(names))


async def test_a_request_that_begins_in_time_is_sent_once(requests: ControlledRequests) -> None:
    racing = asyncio.create_task(race(make_hedges(), requests, delay=10))
    await await_sent(requests, "first")
    requests.begin["first"].set()
    assert await racing == "first"
    assert requests.sent == ["first"]


async def test_the_request_that_begins_first_is_read_and_the_other_cancelled(
    requests: ControlledRequests,
) -> None:
    hedges = make_hedges()
    racing = asyncio.create_task(race(hedges, requests))
    await await_sent(requests, "first", "second")
    requests.begin["second"].set()
    assert await racing == "second"
    assert requests.cancelled == ["first"]
    assert hedges.counts == {"won": 1, "lost": 0, "failed": 0}


async def test_the_first_request_can_still_win(requests: ControlledRequests) -> None:
    hedges = make_hedges()
    racing = asyncio.create_task(race(hedges, requests))
    await await_sent(requests, "first", "second")
    requests.begin["first"].set()
    assert await racing == "first"
    assert requests.cancelled == ["second"]
    assert hedges.counts == {"won": 0, "lost": 1, "failed": 0}


async def test_a_failed_request_leaves_the_answer_to_the_other(
    requests: ControlledRequests,
) -> None:
    hedges = make_hedges()
    racing = asyncio.create_task(
        race(hedges, requests, second_fails=TemporarilyUnavailable("no room"))
    )
    await await_sent(requests, "first", "second")
    requests.begin["second"].set()
    await asyncio.sleep(0)
    requests.begin["first"].set()
    assert await racing == "first"
    assert hedges.counts == {"won": 0, "lost": 0, "failed": 1}


async def test_when_both_fail_the_error_of_the_first_is_raised(
    requests: ControlledRequests,
) -> None:
    first_error, second_error = (
        TemporarilyUnavailable("the first"),
        TemporarilyUnavailable("the second"),
    )
    racing = asyncio.create_task(
        race(make_hedges(), requests, first_fails=first_error, second_fails=second_error)
    )
    await await_sent(requests, "first", "second")
    requests.begin["second"].set()
    await asyncio.sleep(0)
    requests.begin["first"].set()
    with pytest.raises(TemporarilyUnavailable, match="the first"):
        await racing


async def test_cancelling_the_race_cancels_both(requests: ControlledRequests) -> None:
    racing = asyncio.create_task(race(make_hedges(), requests))
    await await_sent(requests, "first", "second")
    racing.cancel()
    await asyncio.gather(racing, return_exceptions=True)
    assert sorted(requests.cancelled) == ["first", "second"]


def test_second_requests_stay_within_their_share_of_the_calls() -> None:
    hedges = make_hedges(share=0.125, calls=0)
    second_requests = 0
    for _ in range(100):
        hedges.next_hedge_delay()
        second_requests += hedges.take_second_request()
    assert second_requests == 12
    for _ in range(1000):
        hedges.next_hedge_delay()
    assert sum(hedges.take_second_request() for _ in range(100)) == int(MAX_BURST)


def test_no_call_is_late_when_hedging_is_off_or_too_few_latencies_are_known() -> None:
    without_hedging = make_hedges(share=0)
    assert without_hedging.next_hedge_delay() is None
    new_hedges = Hedges(0.5)
    for _ in range(MIN_CALLS - 1):
        new_hedges.observe_latency(1.0)
    assert new_hedges.next_hedge_delay() is None
    new_hedges.observe_latency(9.0)
    assert new_hedges.next_hedge_delay() == 1.0


@pytest.mark.parametrize("winner", [0, 1])
async def test_the_loser_is_cancelled_while_the_winner_still_writes(winner: int) -> None:
    begin, cancelled = asyncio.Event(), asyncio.Event()

    def make_request(number: int) -> SendRequest:
        async def send(output: OutputStream) -> str:
            if number != winner:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            await begin.wait()
            output.write("it begins")
            await cancelled.wait()  # the winner ends only after the loser was cancelled
            return str(number)

        return send

    asyncio.get_running_loop().call_later(0.05, begin.set)
    racing = make_hedges().race(0.01, None, make_request(0), make_request(1))
    assert await asyncio.wait_for(racing, MAX_WAIT) == str(winner)
