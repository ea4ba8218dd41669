"""Second requests: only for what is late, within their budget, and the loser is broken off."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.llm.hedges import MAX_BURST, MIN_CALLS, Hedges
from tests.support.eventually import MAX_WAIT, eventually

Run = Callable[[OutputStream], Coroutine[Any, Any, str]]


class Runs:
    """Requests that a test lets begin and end."""

    def __init__(self) -> None:
        self.begin: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def run(self, name: str, error: Exception | None = None) -> Run:
        begin = self.begin[name] = asyncio.Event()

        async def ask(output: OutputStream) -> str:
            self.asked.append(name)
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

        return ask


@pytest.fixture
def runs() -> Runs:
    return Runs()


def hedges(share: float = 0.5, calls: int = 10) -> Hedges:
    made = Hedges(share)
    for _ in range(MIN_CALLS):
        made.observe_latency(0.01)
    for _ in range(calls):
        made.next_hedge_delay()
    return made


async def race(
    made: Hedges,
    runs: Runs,
    delay: float = 0.01,
    *,
    first_fails: Exception | None = None,
    second_fails: Exception | None = None,
) -> str:
    first, second = runs.run("first", first_fails), runs.run("second", second_fails)
    return await asyncio.wait_for(made.race(delay, None, first, second), MAX_WAIT)


async def wait_until_asked(runs: Runs, *names: str) -> None:
    await eventually(lambda: runs.asked == list(names))


async def test_a_request_that_begins_in_time_is_sent_once(runs: Runs) -> None:
    racing = asyncio.create_task(race(hedges(), runs, delay=10))
    await wait_until_asked(runs, "first")
    runs.begin["first"].set()
    assert await racing == "first"
    assert runs.asked == ["first"]


async def test_the_request_that_begins_first_is_read_and_the_other_cancelled(
    runs: Runs,
) -> None:
    made = hedges()
    racing = asyncio.create_task(race(made, runs))
    await wait_until_asked(runs, "first", "second")
    runs.begin["second"].set()
    assert await racing == "second"
    assert runs.cancelled == ["first"]
    assert made.counts == {"won": 1, "lost": 0, "failed": 0}


async def test_the_first_request_can_still_win(runs: Runs) -> None:
    made = hedges()
    racing = asyncio.create_task(race(made, runs))
    await wait_until_asked(runs, "first", "second")
    runs.begin["first"].set()
    assert await racing == "first"
    assert runs.cancelled == ["second"]
    assert made.counts == {"won": 0, "lost": 1, "failed": 0}


async def test_a_failed_request_leaves_the_answer_to_the_other(runs: Runs) -> None:
    made = hedges()
    racing = asyncio.create_task(race(made, runs, second_fails=TemporarilyUnavailable("no room")))
    await wait_until_asked(runs, "first", "second")
    runs.begin["second"].set()
    await asyncio.sleep(0)
    runs.begin["first"].set()
    assert await racing == "first"
    assert made.counts == {"won": 0, "lost": 0, "failed": 1}


async def test_when_both_fail_the_error_of_the_first_is_raised(runs: Runs) -> None:
    one, other = TemporarilyUnavailable("the first"), TemporarilyUnavailable("the second")
    racing = asyncio.create_task(race(hedges(), runs, first_fails=one, second_fails=other))
    await wait_until_asked(runs, "first", "second")
    runs.begin["second"].set()
    await asyncio.sleep(0)
    runs.begin["first"].set()
    with pytest.raises(TemporarilyUnavailable, match="the first"):
        await racing


async def test_cancelling_the_race_cancels_both(runs: Runs) -> None:
    racing = asyncio.create_task(race(hedges(), runs))
    await wait_until_asked(runs, "first", "second")
    racing.cancel()
    await asyncio.gather(racing, return_exceptions=True)
    assert sorted(runs.cancelled) == ["first", "second"]


def test_second_requests_stay_within_their_share_of_the_calls() -> None:
    made = hedges(share=0.125, calls=0)
    second_requests = 0
    for _ in range(100):
        made.next_hedge_delay()
        second_requests += made.take_second_request()
    assert second_requests == 12
    for _ in range(1000):
        made.next_hedge_delay()
    assert sum(made.take_second_request() for _ in range(100)) == int(MAX_BURST)


def test_no_call_is_late_when_hedging_is_off_or_too_few_latencies_are_known() -> None:
    off = hedges(share=0)
    assert off.next_hedge_delay() is None
    new = Hedges(0.5)
    for _ in range(MIN_CALLS - 1):
        new.observe_latency(1.0)
    assert new.next_hedge_delay() is None
    new.observe_latency(9.0)
    assert new.next_hedge_delay() == 1.0


@pytest.mark.parametrize("winner", [0, 1])
async def test_the_loser_is_cancelled_while_the_winner_still_writes(winner: int) -> None:
    begin, broken_off = asyncio.Event(), asyncio.Event()

    def run(number: int) -> Run:
        async def ask(output: OutputStream) -> str:
            if number != winner:
                try:
                    await asyncio.Event().wait()
                finally:
                    broken_off.set()
            await begin.wait()
            output.write("it begins")
            await broken_off.wait()  # it ends only then
            return str(number)

        return ask

    asyncio.get_running_loop().call_later(0.05, begin.set)
    racing = hedges().race(0.01, None, run(0), run(1))
    assert await asyncio.wait_for(racing, MAX_WAIT) == str(winner)
