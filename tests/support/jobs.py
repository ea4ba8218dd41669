"""Job types that do what a test tells them, and record what they have done.

A handler in the test's own process records its steps in `journal`, so that a test waits for a
signal instead of a time:

    job_id = await system.publish("hot.gated")
    await journal.started(job_id)       # its handler runs now, and waits
    journal.release(job_id)             # it ends with Done

All run on the workers `llm` and `embed`, in the lanes hot and backfill, except `tidied`: on `link`,
in hot and maintenance.
"""

import asyncio
import ctypes
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from switchyard.broker.message import JobMessage
from switchyard.services.common.errors import DependencyUnavailable, PermanentError, RetryableError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import (
    Discard,
    Done,
    Job,
    Next,
    Outcome,
    Retry,
    Snooze,
)
from switchyard.services.engine.jobs.registry import job
from tests.support.eventually import MAX_WAIT

CPU_LIMIT = 2.0
SLOW_LIMIT = 0.2
MEMORY_LIMIT_MB = 768


@dataclass(frozen=True)
class Start:
    """A handler has begun."""

    job_id: str
    job_type: str
    lane: str
    attempt: int
    worker_id: str
    at: float
    """Seconds, on the monotonic clock."""
    message: JobMessage = field(repr=False)


class Signals:
    """Wakes tests that wait for a record made elsewhere in this process."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Wake all callers of `until`."""
        self._changed.set()

    async def until(self, true: Callable[[], bool], timeout: float = MAX_WAIT) -> None:
        """Wait until `true()` returns True; it is called after each change.

        Raises AssertionError after `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not true():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"it did not happen in {timeout:g} s; see {self!r}") from None


class Journal(Signals):
    """The steps of handlers in this process, in order, and the gates at which handlers wait."""

    def __init__(self) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<Journal: {self.starts}>"

    def clear(self) -> None:
        """Clear all records. Called before each test, because signals belong to its event loop."""
        super().__init__()
        self.starts: list[Start] = []
        self.ends: list[str] = []
        """Job ids of handlers that have ended, in whatever way."""
        self.checkpoints: list[tuple[str, Any]] = []
        """Job ids with the checkpoint that the job found of an earlier attempt."""
        self.cancelled: list[str] = []
        """Job ids of handlers that were cancelled while they ran."""
        self._released: set[str] = set()
        self._all_released = False

    def note_start(self, ctx: JobContext) -> None:
        message = ctx.message
        start = Start(
            ctx.job_id,
            message.job_type,
            ctx.lane,
            ctx.attempt,
            ctx.worker_id,
            time.monotonic(),
            message,
        )
        self.starts.append(start)
        self.changed()

    def note_end(self, job_id: str) -> None:
        self.ends.append(job_id)
        self.changed()

    def release(self, *job_ids: str) -> None:
        """Open the gates of these jobs, also of those that do not wait there yet."""
        self._released |= set(job_ids)
        self.changed()

    def release_all(self) -> None:
        """Open every gate, for good."""
        self._all_released = True
        self.changed()

    async def gate(self, job_id: str) -> None:
        """Wait until the job is released."""
        await self.until(lambda: self._all_released or job_id in self._released, timeout=600)

    def starts_of(self, job_id: str) -> list[Start]:
        """Return every time that a handler of this job began."""
        return [start for start in self.starts if start.job_id == job_id]

    def runs(self, job_id: str) -> int:
        """Return how often a handler of this job began."""
        return len(self.starts_of(job_id))

    async def started(self, *job_ids: str, times: int = 1) -> None:
        """Wait until a handler of each of these jobs has begun `times` times."""
        await self.until(lambda: all(self.runs(job_id) >= times for job_id in job_ids))


journal = Journal()


class Note(BaseModel):
    """The payload of most of these job types, without required fields."""

    n: int = 0
    text: str = ""


class Script(BaseModel):
    steps: list[str]
    """What each run does, counted over all runs: `done`, `raise`, `permanent`, `retry`,
    `retry:SECONDS`, `retryable:SECONDS`, `snooze:SECONDS`, `discard`, `nonsense`, `unjsonable`,
    `result:BYTES`,
    `huge error`, `cancelled`, `exit`. The last one is for all further runs."""


class Spread(BaseModel):
    """The payload of `spread`: the jobs that follow."""

    count: int = 1
    job_type: str = "received"
    lane: str | None = None
    payload: dict[str, Any] = {}
    text_size: int = 0
    """Characters of a text in each payload."""


class Telling(BaseModel):
    """The payload of `telling`: how often it reports progress, and how it ends."""

    reports: int = 3
    writes: list[str] = []
    """Pieces of output that it writes first, each after the test has released `<job
    id>/<number>`."""
    keep: bool = False
    """Whether it stores each report as a checkpoint."""
    end: str = "done"


class Crunch(BaseModel):
    """The payload of jobs in their own process. `do` is `double`, `spin`, `allocate`, `hoard`,
    `limit`, `die`, `pid`, `parent`, `unpicklable`, or a step of a script."""

    do: str = "double"
    n: int = 0


@job("noop", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def noop(payload: Note, ctx: JobContext) -> Outcome:
    """End at once."""
    journal.note_start(ctx)
    journal.note_end(ctx.job_id)
    return Done({"n": payload.n})


@job("telling", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def telling(payload: Telling, ctx: JobContext) -> Outcome:
    """Report progress, and wait for the test before it ends; after an earlier attempt with a
    checkpoint, go on from that to the end."""
    journal.note_start(ctx)
    journal.checkpoints.append((ctx.job_id, ctx.last_checkpoint))
    for number, piece in enumerate(payload.writes):
        await journal.gate(f"{ctx.job_id}/{number}")
        ctx.output.write(piece)
    report(payload, ctx)
    if ctx.last_checkpoint is not None:
        return Done({"last": ctx.last_checkpoint})
    await journal.gate(ctx.job_id)
    answer: Outcome = end_as(payload.end if journal.runs(ctx.job_id) == 1 else "done", 0)
    return answer


@job("telling_alone", worker="llm", lanes=("hot",), timeout=CPU_LIMIT, isolation="process")
def telling_alone(payload: Telling, ctx: JobContext) -> Any:
    """Do the same as `telling` in a process of its own, without a gate."""
    report(payload, ctx)
    if ctx.attempt > 1:
        return Done({"last": ctx.last_checkpoint})
    return crunch(Crunch(do=payload.end))


def report(payload: Telling, ctx: JobContext) -> None:
    begin = 0 if ctx.last_checkpoint is None else ctx.last_checkpoint["done"]
    for number in range(begin + 1, payload.reports + 1):
        ctx.progress(number / payload.reports, f"{number} of {payload.reports}")
        if payload.keep:
            ctx.checkpoint({"done": number})


@job("gated", worker="llm", lanes=("hot", "backfill"), timeout=60)
async def gated(payload: Note, ctx: JobContext) -> Outcome:
    """Run until the test releases it."""
    journal.note_start(ctx)
    try:
        await journal.gate(ctx.job_id)
    except asyncio.CancelledError:
        journal.cancelled.append(ctx.job_id)
        raise
    finally:
        journal.note_end(ctx.job_id)
    return Done({"n": payload.n})


@job("stubborn", worker="llm", lanes=("hot",), timeout=60)
async def stubborn(payload: Note, ctx: JobContext) -> Outcome:
    """Swallow cancellation until the test releases it."""
    journal.note_start(ctx)
    while True:
        try:
            await journal.gate(ctx.job_id)
        except asyncio.CancelledError:
            journal.cancelled.append(ctx.job_id)
            journal.note_end(ctx.job_id)
        else:
            return Done()


@job("stubborn_and_slow", worker="llm", lanes=("hot",), timeout=SLOW_LIMIT, max_attempts=2)
async def stubborn_and_slow(payload: Note, ctx: JobContext) -> Outcome:
    """Swallow the time limit as well."""
    return await stubborn(payload, ctx)


@job("scripted", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def scripted(payload: Script, ctx: JobContext) -> Outcome:
    """End as its script says."""
    journal.note_start(ctx)
    run = min(journal.runs(ctx.job_id), len(payload.steps))
    step, _, argument = payload.steps[run - 1].partition(":")
    journal.note_end(ctx.job_id)
    return end_as(step, float(argument) if argument else None)


@job("held_script", worker="llm", lanes=("hot",), timeout=60)
async def held_script(payload: Script, ctx: JobContext) -> Outcome:
    """End as its script says when the test releases it."""
    journal.note_start(ctx)
    await journal.gate(ctx.job_id)
    journal.note_end(ctx.job_id)
    return end_as(payload.steps[0], None)


def end_as(step: str, number: float | None) -> Any:
    match step:
        case "done":
            return Done({"step": "done"})
        case "retry":
            return Retry("asked to", after=number)
        case "snooze":
            return Snooze(number or 0)
        case "discard":
            return Discard("not wanted")
        case "nonsense":
            return 42
        case "unjsonable":
            return Done({"result": object()})
        case "result":
            return Done({"text": "x" * (int(number or 0) - len('{"text":""}'))})
        case "permanent":
            raise PermanentError("no use")
        case "retryable":
            raise RetryableError("come back", after=number)
        case "away":
            raise DependencyUnavailable("its server is away", after=number)
        case "cancelled":
            raise asyncio.CancelledError("of something that it had waited for")
        case "exit":
            sys.exit(1)
        case "huge error":
            raise RuntimeError("x" * 1_000_000)
        case _:
            raise RuntimeError("it failed")


@job("located", worker="llm", lanes=("hot",), timeout=30)
async def located(payload: Note, ctx: JobContext) -> Outcome:
    """Return the id of its parent process, if it runs in a child, and its state in the ledger."""
    assert ctx.ledger is not None
    child = multiprocessing.parent_process()
    states = await ctx.ledger.job_reads.states([ctx.job_id])
    return Done({"parent": child and child.pid, "state": states[ctx.job_id]})


@job("deadly", worker="llm", lanes=("hot",), timeout=30)
async def deadly(payload: Note, ctx: JobContext) -> Outcome:
    """Kill the process in which it runs."""
    os.kill(os.getpid(), signal.SIGKILL)
    return Done()


@job("slow", worker="llm", lanes=("hot",), timeout=SLOW_LIMIT, max_attempts=1)
async def slow(payload: Note, ctx: JobContext) -> Outcome:
    """Never end by itself; its time limit is short."""
    journal.note_start(ctx)
    await asyncio.Event().wait()
    return Done()


@job("spread", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def spread(payload: Spread, ctx: JobContext) -> Outcome:
    """Publish next jobs, `received` by the worker `embed` unless told."""
    journal.note_start(ctx)
    text = {"text": "x" * payload.text_size} if payload.text_size else {}
    following = [
        Job(payload.job_type, {"n": n, **text, **payload.payload}, lane=payload.lane)
        for n in range(payload.count)
    ]
    return Next(following, {"count": payload.count})


@job("received", worker="embed", lanes=("hot", "backfill"), timeout=30)
async def received(payload: Note, ctx: JobContext) -> Outcome:
    """End at once, as a job that `spread` publishes."""
    journal.note_start(ctx)
    return Done({"n": payload.n})


@job("tidied", worker="link", lanes=("hot", "maintenance"), timeout=30)
async def tidied(payload: Note, ctx: JobContext) -> Outcome:
    """End at once, as a job of the worker `link`, which also has the lane maintenance."""
    journal.note_start(ctx)
    return Done()


@job(
    "crunched",
    worker="llm",
    lanes=("hot", "backfill"),
    timeout=CPU_LIMIT,
    isolation="process",
    memory_limit_mb=MEMORY_LIMIT_MB,
)
def crunched(payload: Crunch, ctx: JobContext) -> Any:
    """Run in a process of its own, with a memory limit."""
    return crunch(payload)


@job("frugal", worker="llm", lanes=("hot",), timeout=30, isolation="process", cpu_limit=1)
def frugal(payload: Crunch, ctx: JobContext) -> Any:
    """Do the same as `crunched` with a limit of processor time."""
    return crunch(payload)


@job("unlimited", worker="llm", lanes=("hot",), timeout=CPU_LIMIT, isolation="process")
def unlimited(payload: Crunch, ctx: JobContext) -> Any:
    """Do the same as `crunched` without a memory limit."""
    return crunch(payload)


def crunch(payload: Crunch) -> Any:
    match payload.do:
        case "double":
            return Done({"n": payload.n * 2})
        case "pid":
            return Done({"pid": os.getpid()})
        case "spin":
            while True:
                pass
        case "allocate":
            return Done({"size": len(bytearray(4 * MEMORY_LIMIT_MB * 1024 * 1024))})
        case "parent":
            return Done({"pid": os.getppid()})
        case "hoard":  # memory that is never freed, as by a leak in a C library
            hoard = mmap.mmap(-1, MEMORY_LIMIT_MB * 1024 * 1024 * 3 // 5)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(hoard))
            return Done({"pid": os.getpid()})
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "limit":
            return Done({"limit": resource.getrlimit(resource.RLIMIT_AS)[0]})
        case "unpicklable":
            return Done({"result": lambda: None})
    return end_as(payload.do, None)
