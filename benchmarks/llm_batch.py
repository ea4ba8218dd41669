"""Continuous batching, as a model of time: what runs together shares the machine."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True)
class Machine:
    """How fast it is and what it refuses. Times are in its own seconds: see `scale`."""

    at_once: int = 200
    queued: int = 800
    step: float = 0.02
    """Seconds for a token of one request, while few run."""
    knee: int = 32
    """Requests at which it begins to be busy; its most tokens a second are knee / step."""
    tokens: int = 80
    """Tokens of an answer, on average, where the request allows as many."""
    patience: float = 120.0
    """Seconds in its queue after which a request is answered 504."""
    per_minute: int | None = None
    """Requests a minute; None for as many as come."""
    retry_after: int = 1
    """Real seconds that a 503 asks for."""
    bears: int | None = None
    """Requests beyond which each new one cuts the answer that has run for longest; None for none,
    as where others wait in a queue."""
    cut: float = 0.0
    """Part of the answers whose connection ends in the middle, 0 to 1."""
    marks_cuts: bool = False
    """Whether the stream of a cut answer ends with `[DONE]`, though without a `finish_reason`, as
    that of llama-cpp-python's server does."""
    scale: float = 1.0
    """How many of its seconds go by in a real one."""


class Full(Exception):
    """No room, neither to run nor to wait."""


class Batch:
    """The requests that run: all make tokens at one pace, which depends on how many they are."""

    def __init__(self, machine: Machine, clock: Callable[[], float]) -> None:
        self.machine = machine
        self.slowed = 1.0
        """Somebody else's load: everything takes so many times as long."""
        self.running = 0
        self.busy = 0.0
        """Its seconds, weighted by the part of its power that was in use."""
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._made = 0.0
        """Tokens that a request would have which has run since the start."""
        self._at = clock()
        self._marks: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait for room to run. Raises Full, or TimeoutError after the machine's patience."""
        if self.running < self.machine.at_once and not self._waiting:
            self._change(1)
            return
        if len(self._waiting) >= self.machine.queued:
            raise Full
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self.machine.patience / self.machine.scale):
                await place
        except BaseException:
            if place.done() and not place.cancelled():
                self.leave()
            else:
                self._waiting.remove(place)
            raise

    def leave(self) -> None:
        """Make room for the next."""
        self._change(-1)
        if self._waiting and self.running < self.machine.at_once:
            self._waiting.popleft().set_result(None)
            self._change(1)

    async def make(self, tokens: float) -> None:
        """Wait until this request has so many tokens more."""
        self._advance()
        reached = asyncio.get_running_loop().create_future()
        heapq.heappush(self._marks, (self._made + tokens, next(self._numbers), reached))
        self._schedule()
        await reached

    def slow_down(self, times: float) -> None:
        """Take so many times as long from now on; 1 is its own pace."""
        self._advance()
        self.slowed = times
        self._schedule()

    def count_up(self) -> None:
        """Bring `busy` up to now."""
        self._advance()

    def _change(self, by: int) -> None:
        self._advance()
        self.running += by
        self._schedule()

    def _crowding(self) -> float:
        """How many times as long a token takes, for those who run now: 1 for few, and in
        proportion to their number for many."""
        ratio = self.running / self.machine.knee
        return float((1 + ratio**4) ** 0.25)

    def _pace(self) -> float:
        """Tokens a real second that each of the running requests makes."""
        return self.machine.scale / (self.machine.step * self._crowding() * self.slowed)

    def _advance(self) -> None:
        now = self._clock()
        passed, self._at = now - self._at, now
        self._made += passed * self._pace()
        self.busy += passed * self.machine.scale * self._use()

    def _use(self) -> float:
        return self.running / self.machine.knee / self._crowding()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._marks and self._marks[0][2].done():
            heapq.heappop(self._marks)
        if self._marks:
            left = max(0.0, (self._marks[0][0] - self._made) / self._pace())
            self._timer = asyncio.get_running_loop().call_later(left, self._reached)

    def _reached(self) -> None:
        self._advance()
        while self._marks and self._marks[0][0] <= self._made + 1e-6:
            reached = heapq.heappop(self._marks)[2]
            if not reached.done():
                reached.set_result(None)
        self._schedule()
