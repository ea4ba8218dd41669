"""How many requests at once: fixed limits and the two rules, against a server that batches.

Time is simulated: the event loop's clock jumps to whatever happens next, so ten minutes take
seconds, and every run is the same. What is measured are the rules
(`services/llm/concurrency_policy.py`) and the server's batching (`benchmarks/llm_batch.py`);
ledger, HTTP and broker are not in it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeVar

from benchmarks.llm_batch import Batch, Full, Machine
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.llm.concurrency_policy import (
    AdaptivePolicy,
    Bounds,
    CallEnd,
    CallSample,
    ConcurrencyPolicy,
    FixedPolicy,
    PolicyState,
    StepPolicy,
    observe,
)

T = TypeVar("T")

DOMAINS = 300
"""Each has one request under way at most, and asks again after a pause."""
PAUSE = 8.0
"""Seconds between a domain's answer and its next request, on average."""
MINUTES = 10
TIME_LIMIT = 30.0
"""Seconds that a request may take at the server."""
SLOW_FROM, SLOW_TO, SLOWED = 240.0, 360.0, 1.5
"""Seconds between which somebody else's load makes everything take so many times as long."""

CONTENDERS: dict[str, tuple[ConcurrencyPolicy, Bounds]] = {
    "fixed 10": (FixedPolicy(), Bounds(10, 10, 10)),
    "fixed 50": (FixedPolicy(), Bounds(50, 50, 50)),
    "fixed 200": (FixedPolicy(), Bounds(200, 200, 200)),
    "steps (requirement L3), 5 to 50": (StepPolicy(), Bounds(16, 5, 50)),
    "steps (requirement L3), 5 to 200": (StepPolicy(), Bounds(16, 5, 200)),
    "adaptive, 1 to 50": (AdaptivePolicy(), Bounds()),
    "adaptive, 1 to 200": (AdaptivePolicy(), Bounds(max_calls=200)),
}


SMALL = (1, 2, 4, 8)
"""Requests that small servers take at once."""
KINDS = ("queues", "slows")
SEEKING = ("steps (requirement L3), 5 to 50", "adaptive, 1 to 50")


class _Instant(asyncio.SelectorEventLoop):
    """An event loop whose time is what it waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def jump(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        selector.select = jump

    def time(self) -> float:
        return self._now


def instantly(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, with all its waiting done at once."""
    with asyncio.Runner(loop_factory=_Instant) as runner:
        return runner.run(work)


@dataclass
class Outcome:
    """What came of one run; all times in seconds."""

    answered: int = 0
    timed_out: int = 0
    refused: int = 0
    waits: list[float] = field(default_factory=list)
    """From asking to the answer, waiting for room and tries in vain included."""
    deepest: int = 0
    """The most requests that waited for room."""
    use: float = 0.0
    """Part of the server's power that was in use."""
    useful: float = 0.0
    """Part of the answers' time at the server that was not for nothing."""
    limit: float = 0.0
    """The limit at the end of the load."""
    answered_in_time: int = 0
    """Answers up to the end of the load."""

    @property
    def timeouts(self) -> float:
        """Percent of the calls."""
        return 100 * self.timed_out / max(1, self.answered + self.timed_out)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.waits, n=100)[98]


class _Fleet:
    """All workers together: a limit, a queue, and calls."""

    def __init__(self, policy: ConcurrencyPolicy, bounds: Bounds, batch: Batch, seed: int) -> None:
        self.policy, self.bounds, self.batch = policy, bounds, batch
        self.pace = PolicyState.first(bounds, 0.0)
        self.outcome = Outcome()
        self.in_flight = 0
        self._dice = random.Random(seed)
        self._queue: deque[asyncio.Future[None]] = deque()
        self._spent = self._wasted = 0.0

    async def domain(self, end: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._dice.uniform(0, PAUSE))
        while loop.time() < end:
            tokens = max(1, int(self._dice.lognormvariate(-0.125, 0.5) * self.batch.machine.tokens))
            began = loop.time()
            done = await self._call(tokens)
            while not done:
                await asyncio.sleep(self._dice.uniform(1, 2))
                done = await self._call(tokens)
            self.outcome.waits.append(loop.time() - began)
            await asyncio.sleep(self._dice.expovariate(1 / PAUSE))
        self.outcome.useful = 1 - self._wasted / max(1e-9, self._spent)

    async def _call(self, tokens: int) -> bool:
        await self._room()
        loop = asyncio.get_running_loop()
        began = loop.time()
        first: float | None = None
        entered = False
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await self.batch.enter()
                entered = True
                await self.batch.make(11)  # the prompt, and the first token
                first = loop.time()
                await self.batch.make(tokens)
            ended = CallEnd.ANSWERED
            self.outcome.answered += 1
        except TimeoutError:
            ended = CallEnd.TIMED_OUT
            self.outcome.timed_out += 1
            self._wasted += loop.time() - began
        except Full:
            ended = CallEnd.REFUSED
            self.outcome.refused += 1
        finally:
            if entered:
                self.batch.leave()
        self._spent += loop.time() - began
        whole = ended is CallEnd.ANSWERED and first is not None
        sample = CallSample(
            ended,
            self.in_flight,
            loop.time() - began,
            tokens,
            first - began if whole and first is not None else None,
            (loop.time() - first) / tokens if whole and first is not None else None,
            others_wait=bool(self._queue),
        )
        self.pace = observe(self.pace, sample, self.policy, self.bounds, loop.time())
        self.in_flight -= 1
        while self._queue and self.in_flight < int(self.pace.limit):
            self.in_flight += 1
            self._queue.popleft().set_result(None)
        return whole

    async def _room(self) -> None:
        if self.in_flight < int(self.pace.limit) and not self._queue:
            self.in_flight += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self.outcome.deepest = max(self.outcome.deepest, len(self._queue))
        await place


async def run(
    policy: ConcurrencyPolicy,
    bounds: Bounds,
    *,
    seed: int,
    minutes: float = MINUTES,
    machine: Machine | None = None,
    count: int = DOMAINS,
) -> Outcome:
    """One run of the load, to its end: every request that was begun is answered."""
    loop = asyncio.get_running_loop()
    batch = Batch(machine or Machine(), loop.time)
    fleet = _Fleet(policy, bounds, batch, seed)
    end = minutes * 60
    loop.call_at(SLOW_FROM, batch.slow_down, SLOWED)
    loop.call_at(SLOW_TO, batch.slow_down, 1.0)

    def measure() -> None:
        batch.count_up()
        fleet.outcome.use = batch.busy / end
        fleet.outcome.answered_in_time = fleet.outcome.answered
        fleet.outcome.limit = fleet.pace.limit

    loop.call_at(end, measure)
    domains = [asyncio.create_task(fleet.domain(end)) for _ in range(count)]
    await asyncio.gather(*domains)
    return fleet.outcome


def llm(stage: Stage, rounds: int, count: int) -> list[Row]:
    """300 domains for ten simulated minutes, in two of which everything takes 1.5 times as long."""
    rows: list[Row] = []
    for name, (policy, bounds) in CONTENDERS.items():
        outcomes = [instantly(run(policy, bounds, seed=seed)) for seed in range(rounds)]
        figures = (
            ("time-outs", "%", "under 0.5 %", [each.timeouts for each in outcomes]),
            ("server's use", "%", "at least 95 %", [100 * each.use for each in outcomes]),
            ("p99", "s", "under 30 s", [each.p99 for each in outcomes]),
            ("answers", "/s", "over 10/s", [each.answered / MINUTES / 60 for each in outcomes]),
            ("depth", "waiting", "under 500", [float(each.deepest) for each in outcomes]),
        )
        for figure, unit, target, values in figures:
            rows.append(Row(f"{name}: {figure}", unit, values, target=target))
    return rows


def small_machine(kind: str, at_once: int) -> Machine:
    """A server that takes so many at once: it `queues` all others, or `slows` all of them."""
    if kind == "queues":
        return Machine(at_once=at_once, knee=10_000)
    return Machine(knee=at_once)


def llm_small(stage: Stage, rounds: int, count: int) -> list[Row]:
    """The same for servers that take 1, 2, 4 and 8 at once, with 20 domains for each of these."""
    rows: list[Row] = []
    for at_once in SMALL:
        ideal = FixedPolicy(), Bounds(at_once, at_once, at_once)
        contenders = {f"fixed {at_once}": ideal, **{name: CONTENDERS[name] for name in SEEKING}}
        for kind, (name, (policy, bounds)) in product(KINDS, contenders.items()):
            machine, load = small_machine(kind, at_once), count * at_once
            outcomes = [
                instantly(run(policy, bounds, seed=seed, machine=machine, count=load))
                for seed in range(rounds)
            ]
            figures = (
                ("time-outs", "%", "under 0.5 %", [each.timeouts for each in outcomes]),
                ("answers", "/s", "", [each.answered_in_time / MINUTES / 60 for each in outcomes]),
                ("limit", "calls", "", [each.limit for each in outcomes]),
            )
            for figure, unit, target, values in figures:
                title = f"{at_once} at once, {kind}, {name}: {figure}"
                rows.append(Row(title, unit, values, target=target))
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {
    "llm": (llm, 3, DOMAINS),
    "llm_small": (llm_small, 1, 20),
}
