"""Notice that an event loop is blocked, and by what.

While one callback runs, a loop does nothing else: no heartbeat is sent, no hot job starts, no time
limit ends anything. Only a thread can see that, and only while it lasts can it see what runs. A
loop that is found at work is asked for a sign of life; one that is found waiting need not wake, and
is looked at rarely: asyncio's own loop shows since when it is at work.
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
"""Seconds between looks at a loop that is at work."""
IDLE_TICK_INTERVAL = 1.0
"""Seconds between looks at a loop that waits, if it shows later since when it is at work."""
STALLED_AFTER = 0.75
"""Seconds by which a look is late where the whole process stood still, as one that is frozen."""
NOTED_AFTER = 5.0
"""Seconds after which a block is noted although it lasts: its end may be the worker's."""
MAX_SHOWN_FRAMES = 12
"""Frames of a stack in the log, the innermost."""
_LOOP = ("asyncio/base_events.py", "asyncio/runners.py")
"""Files of the innermost code of a loop that runs no callback."""
_ITERATION, _AT_WORK_SINCE = "_run_once", "end_time"
"""Function of asyncio's loop in which callbacks run, and its variable that has the time when the
first of them began."""
_WAIT = "selectors.py"
"""File in which a loop waits for something to do, and others wait as well."""

_JOB_ID, _JOB_TYPE = (f"{STRUCTLOG_KEY_PREFIX}{name}" for name in ("job_id", "job_type"))
"""Context variables of a job's task, and of all tasks that its handler starts."""

Note = Callable[[LoopBlock], Awaitable[None]]
"""Keep a block. It is awaited in an event loop of its own, as the other one is blocked."""


def noted_in(ledger_url: str) -> Note:
    """Keep blocks in that ledger, by a connection of their own."""

    async def note(block: LoopBlock) -> None:
        async with await Ledger.open(ledger_url, prompt=True) as ledger:
            await ledger.workers.note_loop_block(block)

    return note


@dataclass(frozen=True, slots=True)
class _Seen:
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
        note: Note,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._worker_id, self._note, self._clock = worker_id, note, clock
        self._log = structlog.get_logger("loop").bind(worker_id=worker_id)
        self._thread = 0
        self._used = 0.0
        """Processor seconds of the loop's thread at the latest look."""
        self._alive_at = 0.0
        """Monotonic time at which the loop last showed that it was not inside a callback."""
        self._asked = False
        """A sign of life is asked for, and has not come."""
        self._closed = threading.Event()
        self._times: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
        """Both by job type."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Log, count and note every block for as long as the context lasts."""
        self._thread, self._alive_at = threading.get_ident(), time.monotonic()
        loop = asyncio.get_running_loop()
        looking = threading.Thread(target=self._check, args=(loop,), name="loop watch", daemon=True)
        looking.start()
        try:
            yield
        finally:
            self._closed.set()
            await asyncio.to_thread(looking.join)

    def metric_samples(self) -> Iterable[tuple[Metric, Samples]]:
        """Return the metrics, as a source of `Metrics.add_source`."""
        return [
            (names.LOOP_BLOCKS, dict(self._times)),
            (names.LOOP_BLOCKED_SECONDS, dict(self._seconds)),
        ]

    def _give_sign(self) -> None:
        self._alive_at = time.monotonic()
        self._asked = False

    # --- in the thread ----------------------------------------------------------------------

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        shows_begin = isinstance(loop, asyncio.BaseEventLoop)
        idle_pause = IDLE_TICK_INTERVAL if shows_begin else TICK_INTERVAL
        pause = TICK_INTERVAL
        awake_since = at_work_since = looked_at = time.monotonic()
        while not self._closed.wait(pause):
            now, due = time.monotonic(), looked_at + pause
            looked_at = now
            worked = self._has_worked(now - due)
            if now - due > STALLED_AFTER and not worked:
                awake_since = now
            stack = stack_of(self._thread)
            if not self._asked:
                if _is_idle(stack):
                    self._alive_at, pause = now, idle_pause
                    continue
                self._asked = True
                at_work_since = due
                loop.call_soon_threadsafe(self._give_sign)
            pause = TICK_INTERVAL
            at_work_since = _iteration_began(stack) or at_work_since
            began = max(at_work_since, self._alive_at, awake_since)
            if now - began > BLOCKED_AFTER and (running := self._what_runs()):
                self._describe(began, running)
                looked_at = time.monotonic()

    def _has_worked(self, seconds: float) -> bool:
        """Tell whether the loop's thread has used most of so much time since the latest look: a
        library that holds Python's lock stops this thread as well."""
        used = self._processor_time()
        before, self._used = self._used, used
        return used - before > seconds / 2

    def _processor_time(self) -> float:
        clock = getattr(time, "pthread_getcpuclockid", None)
        return 0.0 if clock is None else time.clock_gettime(clock(self._thread))

    def _what_runs(self) -> _Seen | None:
        """Return the callback that the loop runs; None where it runs none, as on a host that is too
        busy to wake it."""
        stack = stack_of(self._thread)
        if _is_idle(stack):
            return None
        bound = _context_of(stack)
        return _Seen(bound.get(_JOB_ID), bound.get(_JOB_TYPE), _place(stack), _shown(stack))

    def _describe(self, began: float, seen: _Seen) -> None:
        """Log a block from when it is noticed until its end."""
        lasted = time.monotonic() - began
        block = LoopBlock(
            id=uuid4().hex,
            worker_id=self._worker_id,
            job_id=seen.job_id,
            job_type=seen.job_type,
            place=seen.place,
            began_at=self._clock() - lasted,
            seconds=lasted,
            ended=False,
        )
        log = self._log.bind(job_id=seen.job_id, job_type=seen.job_type, place=seen.place)
        log.warning("event loop blocked", seconds=round(lasted, 1), stack=seen.stack)
        is_noted = False
        while self._alive_at <= began and not self._closed.wait(TICK_INTERVAL):
            lasted = time.monotonic() - began
            if lasted > NOTED_AFTER and not is_noted:
                is_noted = True
                self._keep(replace(block, seconds=lasted))
        lasted = max(self._alive_at, began + BLOCKED_AFTER) - began
        job_type = seen.job_type or names.OTHER
        self._times[job_type,] += 1
        self._seconds[job_type,] += lasted
        log.warning("event loop free again", seconds=round(lasted, 1))
        self._keep(replace(block, seconds=lasted, ended=True))

    def _keep(self, block: LoopBlock) -> None:
        async def keep() -> None:
            await self._note(block)

        try:
            asyncio.run(keep())
        except Exception as error:  # it is logged; the watch goes on, whatever the ledger says
            self._log.warning("blocked event loop not recorded", error=str(error))


def _is_idle(stack: Sequence[FrameType]) -> bool:
    """Tell whether a thread has ended, or its innermost code is its loop, which runs no
    callback."""
    files = [each.f_code.co_filename for each in stack[:2]]
    if files and files[0].endswith(_WAIT):
        files.pop(0)
    return not files or files[0].endswith(_LOOP)


def _iteration_began(stack: Sequence[FrameType]) -> float | None:
    """Return when the loop began with the callbacks of which one runs; None of a loop that does not
    show it."""
    for each in stack:
        if each.f_code.co_name == _ITERATION:
            began = each.f_locals.get(_AT_WORK_SINCE)
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


def _shown(stack: Sequence[FrameType]) -> str:
    """Write the innermost frames as a traceback does, the innermost last."""
    innermost = [(each, each.f_lineno) for each in reversed(stack[:MAX_SHOWN_FRAMES])]
    return "".join(traceback.StackSummary.extract(innermost).format())


def _place(stack: Sequence[FrameType]) -> str:
    """Return the innermost code that belongs to no library, else the innermost."""
    own = (
        each
        for each in stack
        if not any(part in each.f_code.co_filename for part in ("site-packages", "/lib/py", "<"))
    )
    frame_found = next(own, stack[0])
    code = frame_found.f_code
    return f"{code.co_filename}:{frame_found.f_lineno} in {code.co_name}"
