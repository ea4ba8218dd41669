"""Send a hot question a second time ("hedge") if its answer has not begun in the time in which
nearly all begin. The answer that begins first is read, the other request is closed; both are
charged.

This is off unless JOBS_LLM_HEDGE_SHARE is set, and done for no more than that share of the hot
calls: otherwise a server that is slow for all would get twice the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.engine.jobs.output_stream import OutputStream

MIN_CALLS = 20
"""Calls whose time to the first token must be known before any call gets a second request."""
MAX_CALLS = 200
"""Latest calls whose times to the first token decide when a call is late."""
LATE_QUANTILE = 0.95
"""A call is late if it takes longer to its first token than this part of these calls."""
MAX_BURST = 5.0
"""Highest number of second requests that can be saved up."""
OUTCOMES = ("won", "lost", "failed")

T = TypeVar("T")


class Hedges:
    """Decides when one process sends second requests."""

    def __init__(self, share: float) -> None:
        """Take the share of hot calls that may get a second request, 0 to 1; 0 turns hedges off."""
        self._share = share
        self._saved_requests = 0.0
        self._times: deque[float] = deque(maxlen=MAX_CALLS)
        self.counts = dict.fromkeys(OUTCOMES, 0)
        """Second requests that began to answer first, that did not, and that failed or could not be
        made."""

    def observe_latency(self, seconds: float) -> None:
        """Record the seconds that a call took to its first token."""
        self._times.append(seconds)

    def next_hedge_delay(self) -> float | None:
        """Return the seconds after which a hot call that begins now is late; None if that is not
        known yet, or hedges are off. Each such call earns a part of a second request."""
        if self._share <= 0:
            return None
        self._saved_requests = min(MAX_BURST, self._saved_requests + self._share)
        if len(self._times) < MIN_CALLS:
            return None
        return sorted(self._times)[int(LATE_QUANTILE * (len(self._times) - 1))]

    def take_second_request(self) -> bool:
        """Use up one of the second requests saved up. Returns False if there is none."""
        if self._saved_requests < 1:
            return False
        self._saved_requests -= 1
        return True

    async def race(
        self,
        delay: float,
        output: OutputStream | None,
        first: Callable[[OutputStream], Coroutine[Any, Any, T]],
        second: Callable[[OutputStream], Coroutine[Any, Any, T]],
    ) -> T:
        """Return the answer that begins first: of `first`, or of `second`, which is sent if `first`
        has not begun after `delay` seconds and a second request is saved up. A request that fails
        before it begins leaves the answer to the other; if both do, raises the error of `first`.
        Raises what the answering request raises, and an error of `second` that is no
        SwitchyardError in any case."""
        race = _FirstTokenRace(output)
        runs = [asyncio.create_task(first(race.output_of(0)))]
        try:
            if await _wait_for_any(delay, runs[0], race.has_winner):
                return await runs[0]
            if not self.take_second_request():
                return await runs[0]
            runs.append(asyncio.create_task(second(race.output_of(1))))
            return await self._winning_answer(runs, race)
        finally:
            await end_tasks(*runs)

    async def _winning_answer(self, runs: list[asyncio.Task[T]], race: _FirstTokenRace) -> T:
        while race.winner is None and not any(_has_answer(run) for run in runs):
            open_runs = [run for run in runs if not run.done()]
            if not open_runs:
                break
            await _wait_for_any(None, *open_runs, race.has_winner)
        winner = race.winner
        if winner is None:
            winner = next((index for index, run in enumerate(runs) if _has_answer(run)), 0)
        has_second_failed = winner == 0 and runs[1].done() and runs[1].exception() is not None
        has_second_won = winner == 1
        self.counts["won" if has_second_won else "failed" if has_second_failed else "lost"] += 1
        if has_second_failed and not isinstance(runs[1].exception(), SwitchyardError):
            return await runs[1]  # no SwitchyardError, but a defect: raise it where it is seen
        # End the other request now: it would go on until this answer is complete.
        await end_tasks(runs[1 - winner])
        return await runs[winner]


class _FirstTokenRace:
    """Records which of two requests has begun to answer first."""

    def __init__(self, output: OutputStream | None) -> None:
        self.winner: int | None = None
        self.has_winner = asyncio.Event()
        self.output = output

    def output_of(self, number: int) -> OutputStream:
        return _HedgedStream(self, number)


class _HedgedStream(OutputStream):
    """The output of one of two requests: passed on if it has begun first."""

    __slots__ = ("_number", "_race")

    def __init__(self, race: _FirstTokenRace, number: int) -> None:
        super().__init__()
        self._race = race
        self._number = number

    def begin(self) -> None:
        if self._race.winner == self._number and self._race.output is not None:
            self._race.output.begin()

    def write(self, text: str) -> None:
        race = self._race
        if race.winner is None:
            race.winner = self._number
            race.has_winner.set()
            if race.output is not None:
                race.output.begin()
        if race.winner == self._number and race.output is not None:
            race.output.write(text)


async def _wait_for_any(timeout: float | None, *awaited: asyncio.Task[Any] | asyncio.Event) -> bool:
    """Wait for the first of some tasks and events. Returns False after `timeout` seconds."""
    event_tasks: list[asyncio.Task[Any]] = []
    tasks: list[asyncio.Task[Any]] = []
    for each in awaited:
        if isinstance(each, asyncio.Task):
            tasks.append(each)
        else:
            event_tasks.append(asyncio.create_task(each.wait()))
    try:
        done, _ = await asyncio.wait(
            [*tasks, *event_tasks], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        await end_tasks(*event_tasks)


def _has_answer(run: asyncio.Task[Any]) -> bool:
    return run.done() and not run.cancelled() and run.exception() is None
