"""Running one handler: in the event loop, or in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import pickle
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as PoolTimeout
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from pebble import ProcessExpired, ProcessPool
from pydantic import BaseModel

from switchyard.services.engine.jobs.context import JobContext, ProcessCrashed, in_thread
from switchyard.services.engine.jobs.progress_buffer import ProgressBuffer
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.records.results import TIMED_OUT
from switchyard.services.engine.runtime.child import (
    OUT_OF_MEMORY,
    WORN_OUT,
    ChildResult,
    failure_of,
    prepare,
    run,
    run_job,
    run_sealed,
    run_task,
    sealed,
    unsealed,
)
from switchyard.services.engine.runtime.process_start import start_method
from switchyard.services.engine.runtime.running_job import is_from_outside
from switchyard.services.engine.runtime.shared_memory import SharedProgressReader, open_page

PROCESS_POLL_INTERVAL = 0.5
"""Seconds between looks at what a job in a process of its own says of itself."""
LOST_AFTER = 1.0
"""Seconds between looks at whether the pool that has a job still works; it tells of all that it
knows of sooner than that."""
TASKS_PER_PROCESS = 100
"""A process is replaced after so many jobs, so that what a C library leaks stays bounded."""
SUSPECTS_AT_ONCE = 4
"""Jobs of one lane whose worker has died that may run again at once, as each takes a process."""
SHORT_TEXT = 200_000
"""Characters up to which work on a text is done in a thread, as it ends within a second or so."""
LARGE_ANSWER = 256 * 1024
"""Bytes of another process's answer from which it is read in a thread."""
COMPUTE_MEMORY_MB = 2048
"""Address space of a process that works on a longer one, in MiB."""


class Executor:
    """Runs handlers for one kind of worker. `processes` is how many may run at once, outside
    the event loop; none is started before the first job that needs one."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPool | None = None
        """Has begun its processes."""
        self._starting: asyncio.Task[None] | None = None
        # Of each lane, so that a hot one does not wait for others.
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(SUSPECTS_AT_ONCE)
        )

    async def run(
        self, job_type: JobType, payload: BaseModel, ctx: JobContext, *, suspect: bool = False
    ) -> Any:
        """Return the handler's answer, or a Failure: neither a time limit escapes nor what the
        handler raises, of whatever class (KeyboardInterrupt, a panic of Rust), nor that it cancels
        its own task. `ctx` has this executor's `compute` and `in_process`.

        A `suspect`, whose worker has died, runs in a process of its own: if it kills that, nobody
        else is harmed, and nobody else is to blame. Beside it other jobs, hot ones above all,
        start as ever. Cancelling this call cancels the handler; a handler's process is killed.
        """
        if job_type.isolation == "process":
            limits = (job_type.memory_limit_mb, job_type.cpu_limit)
            return await self._run_in_process(job_type, payload, ctx, run_job, *limits)
        if suspect and _can_be_sent(job_type.handler):
            async with self._turns[ctx.lane]:
                return await _run_alone(job_type, payload, ctx)
        # A task of its own: so what cancels that one is told from what cancels this call.
        running = asyncio.create_task(_run_here(job_type, payload, ctx))
        try:
            return await running
        except asyncio.CancelledError as error:
            if is_from_outside(error):
                raise
            return Failure.from_error(error)

    async def compute(self, work: Callable[..., Any], *args: Any, characters: int) -> Any:
        """Return what the work gives or raises: JobContext.compute for a handler in the event
        loop."""
        if characters <= SHORT_TEXT:
            return await in_thread(work, *args)
        try:
            return await self._in_process(run, [work, args, COMPUTE_MEMORY_MB])
        except ProcessExpired as error:
            if error.exitcode in (OUT_OF_MEMORY, WORN_OUT):
                raise MemoryError(_too_big(work.__name__, COMPUTE_MEMORY_MB)) from error
            raise

    async def in_process(
        self, work: Callable[..., Any], *args: Any, timeout: float, memory_limit_mb: int
    ) -> Any:
        """Return what the work gives or raises: JobContext.in_process for a handler in the event
        loop. The time begins when a process is free for it."""
        name = work.__name__
        try:
            return await self._in_process(run, [work, args, memory_limit_mb], timeout)
        except ProcessExpired as error:
            if error.exitcode in (OUT_OF_MEMORY, WORN_OUT):
                raise MemoryError(_too_big(name, memory_limit_mb)) from error
            raise ProcessCrashed(
                f"the process of {name} {_how_it_ended(error.exitcode)}"
            ) from error

    async def _run_in_process(
        self,
        job_type: JobType,
        payload: BaseModel,
        ctx: JobContext,
        work: Callable[..., Any],
        *options: Any,
    ) -> Any:
        try:
            with open_page() as page, _handing_on(page, ctx.progress_buffer):
                ended = await self._in_process(
                    work,
                    [job_type.handler, payload, _portable(ctx), page.address, *options],
                    timeout=job_type.timeout,
                )
            if isinstance(ended, ChildResult):
                ctx.usage.tokens = ended.usage.tokens
                return ended.ended
            return ended
        except PoolTimeout:
            return _too_slow(job_type)
        except ProcessExpired as error:
            if error.exitcode in (OUT_OF_MEMORY, WORN_OUT):
                return Failure("MemoryError", _too_big(job_type.name, job_type.memory_limit_mb))
            if error.exitcode == -signal.SIGXCPU and job_type.cpu_limit is not None:
                return _too_much_work(job_type)
            return Failure(
                "ProcessCrashed",
                f"the handler's process {_how_it_ended(error.exitcode)}",
                crashed=True,
            )
        except BaseException as error:
            if is_from_outside(error):
                raise
            return Failure.from_error(error)  # of what can't be pickled, or of the pool

    async def _in_process(
        self, work: Callable[..., Any], args: list[Any], timeout: float | None = None
    ) -> Any:
        """Return what the work gives or raises in a process of the pool, killed when this is
        cancelled.

        A process that earlier jobs have worn out is replaced, and the work begins again in
        another: at most once for each of them.
        """
        left = self._processes
        call = sealed(work, args)
        while True:
            pool = await self._executor_for(args[0])
            running = asyncio.wrap_future(pool.schedule(run_sealed, args=[call], timeout=timeout))
            try:
                answer = await self._on_process_end(running, pool)
                if len(answer) > LARGE_ANSWER:
                    return await in_thread(unsealed, answer)
                return unsealed(answer)
            except (ProcessExpired, BrokenProcessPool) as error:
                # The pool breaks, with all that it has, when an idle process of it is killed.
                worn = isinstance(error, BrokenProcessPool) or error.exitcode == WORN_OUT
                if not worn or not left:
                    raise
                left -= 1

    async def _on_process_end(self, running: asyncio.Future[Any], pool: ProcessPool) -> Any:
        """Return what comes of it. A pool that breaks ends what it knows of, but not what it is
        given at that moment: nobody would hear of it again."""
        try:
            while not (await asyncio.wait([running], timeout=LOST_AFTER))[0]:
                if self._pool is not None and not pool.active:
                    raise BrokenProcessPool("given to a pool that was breaking")
            return await running
        finally:
            running.cancel()

    async def _executor_for(self, first: Callable[..., Any]) -> ProcessPool:
        while True:
            if self._pool is not None:
                if self._pool.active:
                    return self._pool
                await self.close()  # it broke, as when an idle process of it was killed
            if self._starting is None:
                self._starting = asyncio.create_task(self._start(first))
            await asyncio.shield(self._starting)

    async def _start(self, first: Callable[..., Any]) -> None:
        """Open the pool. That takes seconds on a busy host, in which the loop goes on."""
        try:
            pool = ProcessPool(
                max_workers=self._processes,
                max_tasks=TASKS_PER_PROCESS,
                initializer=prepare,
                context=start_method(first),
            )
            await asyncio.to_thread(lambda: pool.active)  # which starts its processes
            self._pool = pool
        finally:
            self._starting = None

    async def close(self) -> None:
        """End the processes, killing what still runs."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            await asyncio.to_thread(pool.join)


async def _run_here(job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
    """A handler in the event loop: its answer, or a Failure. Raises CancelledError where its task
    was cancelled, by whomever."""
    limit = asyncio.timeout(job_type.timeout)
    try:
        async with limit:
            return await job_type.handler(payload, ctx)
    except BaseException as error:
        if is_from_outside(error):
            raise
        if issubclass(type(error), TimeoutError) and limit.expired():
            return _too_slow(job_type)
        return failure_of(error)


def _how_it_ended(exit_code: int) -> str:
    """Of a process that nobody wanted to end."""
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL, as the kernel does where memory is short"
    if -exit_code in signal.valid_signals():
        name = signal.Signals(-exit_code).name
        return f"was killed by {name}: the trace in the log says where"
    return f"ended with exit code {exit_code}"


async def _run_alone(job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
    """Run a handler of the event loop in a new process, which ends with it."""
    # Not one of the pool's, which starts all of them at once.
    executor = Executor(1)
    try:
        return await executor._run_in_process(job_type, payload, ctx, run_task)
    finally:
        await executor.close()


def _can_be_sent(handler: Callable[..., Any]) -> bool:
    """Tell whether another process can find the handler: at the top level of its module."""
    try:
        pickle.dumps(handler)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _portable(ctx: JobContext) -> Mapping[str, Any]:
    return {
        "message": ctx.message,
        "lane": ctx.lane,
        "worker_id": ctx.worker_id,
        "settings": ctx.settings,
        "last_checkpoint": ctx.last_checkpoint,
    }


@contextmanager
def _handing_on(page: SharedProgressReader, progress_buffer: ProgressBuffer) -> Iterator[None]:
    """Note what the job says of itself while it runs, and its last words, however it ends."""
    loop = asyncio.get_running_loop()

    coming: list[asyncio.TimerHandle] = []

    def look() -> None:
        page.hand_on(progress_buffer)
        coming[:] = [loop.call_later(PROCESS_POLL_INTERVAL, look)]

    look()
    try:
        yield
    finally:
        coming[0].cancel()
        page.hand_on(progress_buffer)


def _too_slow(job_type: JobType) -> Failure:
    return Failure(TIMED_OUT, f"{job_type.name} ran longer than its {job_type.timeout:g} s")


def _too_much_work(job_type: JobType) -> Failure:
    return Failure(
        "ProcessorTimeExceeded",
        f"{job_type.name} took more than its {job_type.cpu_limit} s of processor time, and would "
        "again: it is not tried again",
        permanent=True,
    )


def _too_big(name: str, limit_mb: int | None) -> str:
    return f"{name} took more than its {limit_mb} MiB of memory"
