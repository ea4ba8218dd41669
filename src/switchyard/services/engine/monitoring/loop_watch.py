"""Notice that an event loop is blocked, and by what.

While one callback runs, a loop does nothing else: no heartbeat is sent, no hot job starts, no time
limit ends anything. Only another thread can notice that, and only during the block can it see what
runs. A loop that is found at work is asked for a sign of life. A loop that is found waiting is not
woken, and is checked rarely, as asyncio's own loop shows since when it is at work.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import FrameType
from uuid import uuid4

import structlog
from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from switchyard.services.common.thread_stack import stack_of
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.records.results import LoopBlock

BLOCKED_AFTER = 1.0
"""Seconds that one callback may run before it counts as blocking the loop."""
TICK_INTERVAL = 0.25
"""Seconds between checks of a loop that is at work."""
IDLE_TICK_INTERVAL = 1.0
"""Seconds between checks of a loop that waits, if it shows since when it is at work."""
STALLED_AFTER = 0.75
"""Seconds by which a check is late if the whole process stood still, as a frozen one does."""
SAVED_AFTER = 5.0
"""Seconds after which a block is saved before its end, which may be the worker's end."""
MAX_SHOWN_FRAMES = 12
"""Frames of a stack in the log, the innermost."""
_LOOP_FILES = ("asyncio/base_events.py", "asyncio/runners.py")
"""Files of a loop's own code."""
_ITERATION_FUNCTION, _WORK_START_VARIABLE = "_run_once", "end_time"
"""Function of asyncio's loop that runs a round of callbacks, and its variable with the time at
which the round began."""
_SELECTOR_FILE = "selectors.py"
"""File in which a loop waits for events; other code may wait in it, too."""

_JOB_ID, _JOB_TYPE = (f"{STRUCTLOG_KEY_PREFIX}{name}" for name in ("job_id", "job_type"))
"""Context variables of a job's task, and of all tasks that its handler starts."""

SaveBlock = Callable[[LoopBlock], Awaitable[None]]
"""Saves a block. It is awaited in an event loop of its own, as the watched one is blocked."""


def save_in_ledger(ledger_url: str) -> SaveBlock:
    """Return a function that saves blocks in that ledger, over a connection of its own."""

    async def save_block(block: LoopBlock) -> None:
        async with await Ledger.open(ledger_url, fail_fast=True) as ledger:
            await ledger.workers.record_loop_block(block)

    return save_block


@dataclass(frozen=True, slots=True)
class _RunningCallback:
    """The callback that a blocked loop runs."""

    job_id: str | None
    job_type: str | None
    place: str
    stack: str


class LoopWatch:
    """Watches the event loop in which `watching` is entered. `worker_id` names the process in the
    ledger."""

    def __init__(
        self,
        worker_id: str,
        save_block: SaveBlock,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._worker_id, self._save_block, self._clock = worker_id, save_block, clock
        self._log = structlog.get_logger("loop").bind(worker_id=worker_id)
        self._thread = 0
        self._processor_seconds = 0.0
        """Processor seconds of the loop's thread at the latest check."""
        self._alive_at = 0.0
        """Monotonic time at which the loop last showed that it was not inside a callback."""
        self._is_sign_requested = False
        """Whether a sign of life was requested, and has not come."""
        self._closed = threading.Event()
        self._blocks: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        """Numbers and seconds of blocks, by job type."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Log, count and save every block for as long as the context lasts."""
        self._thread, self._alive_at = threading.get_ident(), time.monotonic()
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._watch_loop, args=(loop,), name="loop watch", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._closed.set()
            await asyncio.to_thread(thread.join)

    def metric_samples(self) -> Iterable[tuple[Metric, Samples]]:
        """Return the metrics, as a source of `Metrics.add_source`."""
        return [
            (names.LOOP_BLOCKS, dict(self._blocks)),
            (names.LOOP_BLOCKED_SECONDS, dict(self._seconds)),
        ]

    def _show_alive(self) -> None:
        self._alive_at = time.monotonic()
        self._is_sign_requested = False

    # --- in the thread ----------------------------------------------------------------------

    def _watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        shows_work_start = isinstance(loop, asyncio.BaseEventLoop)
        idle_pause = IDLE_TICK_INTERVAL if shows_work_start else TICK_INTERVAL
        pause = TICK_INTERVAL
        awake_since = at_work_since = checked_at = time.monotonic()
        while not self._closed.wait(pause):
            now, due = time.monotonic(), checked_at + pause
            checked_at = now
            worked = self._has_worked(now - due)
            if now - due > STALLED_AFTER and not worked:
                awake_since = now  # the whole process stood still: no callback is to blame
            stack = stack_of(self._thread)
            if not self._is_sign_requested:
                if _is_idle(stack):
                    self._alive_at, pause = now, idle_pause
                    continue
                self._is_sign_requested = True
                at_work_since = due
                loop.call_soon_threadsafe(self._show_alive)
            pause = TICK_INTERVAL
            at_work_since = _iteration_began(stack) or at_work_since
            began = max(at_work_since, self._alive_at, awake_since)
            if now - began > BLOCKED_AFTER and (callback := self._find_callback()):
                self._follow_block(began, callback)
                checked_at = time.monotonic()

    def _has_worked(self, seconds: float) -> bool:
        """Tell whether the loop's thread has used at least half of that time since the latest
        check. Then a library has held Python's lock, which stops this thread as well."""
        used = self._processor_time()
        before, self._processor_seconds = self._processor_seconds, used
        return used - before > seconds / 2

    def _processor_time(self) -> float:
        clock = getattr(time, "pthread_getcpuclockid", None)
        return 0.0 if clock is None else time.clock_gettime(clock(self._thread))

    def _find_callback(self) -> _RunningCallback | None:
        """Return the callback that the loop runs; None where it runs none, as on a host that is too
        busy to wake the loop."""
        stack = stack_of(self._thread)
        if _is_idle(stack):
            return None
        bound = _context_of(stack)
        return _RunningCallback(
            bound.get(_JOB_ID), bound.get(_JOB_TYPE), _find_place(stack), _format_stack(stack)
        )

    def _follow_block(self, began: float, callback: _RunningCallback) -> None:
        """Log a block, wait for its end, count it, and save it."""
        seconds = time.monotonic() - began
        block = LoopBlock(
            id=uuid4().hex,
            worker_id=self._worker_id,
            job_id=callback.job_id,
            job_type=callback.job_type,
            place=callback.place,
            began_at=self._clock() - seconds,
            seconds=seconds,
            ended=False,
        )
        log = self._log.bind(
            job_id=callback.job_id, job_type=callback.job_type, place=callback.place
        )
        log.warning("event loop blocked", seconds=round(seconds, 1), stack=callback.stack)
        is_saved = False
        while self._alive_at <= began and not self._closed.wait(TICK_INTERVAL):
            seconds = time.monotonic() - began
            if seconds > SAVED_AFTER and not is_saved:
                is_saved = True
                self._save(replace(block, seconds=seconds))
        seconds = max(self._alive_at, began + BLOCKED_AFTER) - began
        job_type = callback.job_type or names.OTHER
        self._blocks[job_type,] += 1
        self._seconds[job_type,] += seconds
        log.warning("event loop free again", seconds=round(seconds, 1))
        self._save(replace(block, seconds=seconds, ended=True))

    def _save(self, block: LoopBlock) -> None:
        async def save() -> None:
            await self._save_block(block)

        try:
            asyncio.run(save())
        except Exception as error:  # logged only: the watch must go on without a ledger
            self._log.warning("blocked event loop not recorded", error=str(error))


def _is_idle(stack: Sequence[FrameType]) -> bool:
    """Tell whether a thread has ended, or is in the code of its loop itself, outside of any
    callback."""
    files = [each.f_code.co_filename for each in stack[:2]]
    if files and files[0].endswith(_SELECTOR_FILE):
        files.pop(0)
    return not files or files[0].endswith(_LOOP_FILES)


def _iteration_began(stack: Sequence[FrameType]) -> float | None:
    """Return the monotonic time at which the loop began its present round of callbacks; None if the
    loop does not show it."""
    for each in stack:
        if each.f_code.co_name == _ITERATION_FUNCTION:
            began = each.f_locals.get(_WORK_START_VARIABLE)
            return began if isinstance(began, float) else None
    return None


def _context_of(stack: Sequence[FrameType]) -> dict[str, str]:
    """Return the job of the callback that a loop runs, by the names of its context variables."""
    for each in stack:
        handle = each.f_locals.get("self") if each.f_code.co_name == "_run" else None
        if isinstance(handle, asyncio.Handle):
            bound: contextvars.Context = handle._context  # type: ignore[attr-defined]
            return {each.name: bound[each] for each in bound if each.name in (_JOB_ID, _JOB_TYPE)}
    return {}


def _format_stack(stack: Sequence[FrameType]) -> str:
    """Format the innermost frames as a traceback, the innermost last."""
    innermost = [(each, each.f_lineno) for each in reversed(stack[:MAX_SHOWN_FRAMES])]
    return "".join(traceback.StackSummary.extract(innermost).format())


def _find_place(stack: Sequence[FrameType]) -> str:
    """Return file, line and function of the innermost code that belongs to no library, or, without
    any, of the innermost."""
    own = (
        each
        for each in stack
        if not any(part in each.f_code.co_filename for part in ("site-packages", "/lib/py", "<"))
    )
    frame = next(own, stack[0])
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
