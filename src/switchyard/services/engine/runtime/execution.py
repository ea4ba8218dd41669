"""Run a handler: in the event loop, or in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import pickle
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
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
    pickle_call,
    run_async_job,
    run_job,
    run_with_memory_limit,
    serve,
    unpickle_outcome,
)
from switchyard.services.engine.runtime.handler_task import HandlerTask, time_limit_failure
from switchyard.services.engine.runtime.process_pool import ProcessEnded, ProcessPool
from switchyard.services.engine.runtime.running_job import is_from_outside
from switchyard.services.engine.runtime.shared_memory import (
    SharedProgressReader,
    open_shared_progress,
)

PROCESS_POLL_INTERVAL = 0.5
"""Seconds between reads of the progress of a job in a process of its own."""
MAX_SUSPECTS = 4
"""Suspects of one lane that may run at the same time, since each takes a process."""
SHORT_TEXT_LENGTH = 200_000
"""Characters up to which work on a text is done in a thread, as it takes about a second."""
LARGE_ANSWER_BYTES = 256 * 1024
"""Bytes of another process's answer from which it is unpickled in a thread."""
COMPUTE_MEMORY_MB = 2048
"""Address space, in MiB, of a process for work on a text longer than SHORT_TEXT_LENGTH."""


class Executor:
    """Runs handlers for one kind of worker. `processes` is how many may run at once, outside
    the event loop; none is started before the first job that needs one."""

    def __init__(self, processes: int) -> None:
        self._pool = ProcessPool(processes, serve)
        # Referenced here, as asyncio itself keeps only weak references to tasks.
        self._abandoned: set[asyncio.Task[Any]] = set()
        # By lane, so that a hot job does not wait for others.
        self._suspect_slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_SUSPECTS)
        )

    async def run(
        self, job_type: JobType, payload: BaseModel, ctx: JobContext, *, suspect: bool = False
    ) -> Any:
        """Run a handler; return its outcome, or a Failure if it exceeded its time limit, raised any
        exception (also KeyboardInterrupt, or a panic of Rust), or cancelled its own task. `ctx` has
        this executor's `compute` and `in_process`.

        A `suspect` is a job that was in a worker when the worker died. It runs in a process of its
        own: if it kills that process, no other job is harmed or blamed.
        Cancelling this call cancels the handler; a handler's process is killed. A handler in the
        event loop that swallows CancelledError has CANCEL_GRACE to end, and so has, at the time
        limit, what it calls in threads.
        """
        if job_type.isolation == "process":
            limits = (job_type.memory_limit_mb, job_type.cpu_limit)
            return await self._run_handler_in_process(job_type, payload, ctx, run_job, *limits)
        if suspect and _is_picklable(job_type.handler):
            async with self._suspect_slots[ctx.lane]:
                return await _run_alone(job_type, payload, ctx)
        return await self._run_in_loop(job_type, payload, ctx)

    async def _run_in_loop(self, job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
        handler = HandlerTask(job_type, payload, ctx)
        try:
            await handler.wait()
        except asyncio.CancelledError:
            if self._abandon_unless_done(handler.task, job_type, ctx):
                raise
        else:
            if self._abandon_unless_done(handler.task, job_type, ctx):
                return _abandoned_failure(job_type, ctx)
        if threads := handler.leave_threads():
            structlog.get_logger("worker").error(
                "threads abandoned",
                job_id=ctx.message.job_id,
                job_type=job_type.name,
                threads=threads,
            )
            if handler.is_late:
                return _left_threads_failure(job_type, ctx, threads)
        return handler.result()

    def _abandon_unless_done(
        self, handler_task: asyncio.Task[Any], job_type: JobType, ctx: JobContext
    ) -> bool:
        """Abandon a handler that ignores its cancellation: it runs until the worker ends. Return
        False for a handler that has ended."""
        if handler_task.done():
            return False
        handler_task.cancel()
        self._abandoned.add(handler_task)
        handler_task.add_done_callback(self._forget_abandoned)
        structlog.get_logger("worker").error(
            "handler abandoned",
            job_id=ctx.message.job_id,
            job_type=job_type.name,
            abandoned=len(self._abandoned),
        )
        return True

    def _forget_abandoned(self, result: asyncio.Task[Any]) -> None:
        self._abandoned.discard(result)
        if not result.cancelled():
            result.exception()  # retrieve it: asyncio logs errors that nobody retrieves

    async def compute(self, work: Callable[..., Any], *args: Any, characters: int) -> Any:
        """Run the work; return or raise as it does. This is JobContext.compute for a handler in the
        event loop."""
        if characters <= SHORT_TEXT_LENGTH:
            return await in_thread(work, *args)
        return await self._compute_in_process(work, args, None, COMPUTE_MEMORY_MB)

    async def in_process(
        self, work: Callable[..., Any], *args: Any, timeout: float, memory_limit_mb: int
    ) -> Any:
        """Run the work; return or raise as it does. This is JobContext.in_process for a handler in
        the event loop. The timeout begins when a process is free."""
        return await self._compute_in_process(work, args, timeout, memory_limit_mb)

    async def _compute_in_process(
        self,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        timeout: float | None,
        memory_limit_mb: int,
    ) -> Any:
        try:
            # In a thread: the arguments may be a whole graph, or a page of a scan.
            request = await in_thread(
                pickle_call, run_with_memory_limit, [work, args, memory_limit_mb]
            )
            return await self._call_pool(run_with_memory_limit, request, timeout)
        except ProcessEnded as error:
            name = work.__name__
            if error.exit_code in (OUT_OF_MEMORY, WORN_OUT):
                raise MemoryError(_memory_exceeded_text(name, memory_limit_mb)) from error
            exit_text = _describe_exit(error.exit_code)
            raise ProcessCrashed(f"the process of {name} {exit_text}") from error

    async def _run_handler_in_process(
        self,
        job_type: JobType,
        payload: BaseModel,
        ctx: JobContext,
        work: Callable[..., Any],
        *options: Any,
    ) -> Any:
        try:
            with open_shared_progress() as page, _copying_progress(page, ctx.progress_buffer):
                context = _picklable_context(ctx)
                arguments = [job_type.handler, payload, context, page.address, *options]
                result = await self._call_pool(
                    work, pickle_call(work, arguments), timeout=job_type.timeout
                )
            if isinstance(result, ChildResult):
                ctx.usage.tokens = result.usage.tokens
                return result.outcome
            return result
        except TimeoutError:
            return time_limit_failure(job_type)
        except ProcessEnded as error:
            if error.exit_code in (OUT_OF_MEMORY, WORN_OUT):
                return Failure(
                    "MemoryError", _memory_exceeded_text(job_type.name, job_type.memory_limit_mb)
                )
            if error.exit_code == -signal.SIGXCPU and job_type.cpu_limit is not None:
                return _processor_time_exceeded(job_type)
            return Failure(
                "ProcessCrashed",
                f"the handler's process {_describe_exit(error.exit_code)}",
                crashed=True,
            )
        except BaseException as error:
            if is_from_outside(error):
                raise
            return Failure.from_error(error)  # an error of pickling, or of the pool

    async def _call_pool(
        self, work: Callable[..., Any], request: bytes, timeout: float | None = None
    ) -> Any:
        """Run the work in a process of the pool; return its result, or raise its error. The process
        is killed when this call is cancelled. `request` is its pickled call.

        If earlier jobs have used up the process's memory, the work is repeated in a new one.
        """
        try:
            answer = await self._pool.call(request, timeout=timeout, preload=work)
        except ProcessEnded as error:
            if error.exit_code != WORN_OUT:
                raise
            answer = await self._pool.call(request, timeout=timeout, preload=work, fresh=True)
        if len(answer) > LARGE_ANSWER_BYTES:
            return await in_thread(unpickle_outcome, answer)
        return unpickle_outcome(answer)

    @property
    def pids(self) -> list[int]:
        """The PIDs of the processes that run jobs now, or wait for more."""
        return self._pool.pids

    async def close(self) -> None:
        """End the processes, killing what still runs."""
        await self._pool.close()


def _abandoned_failure(job_type: JobType, ctx: JobContext) -> Failure:
    # No retry: it would run beside this attempt.
    return Failure(
        TIMED_OUT,
        f"{job_type.name} ran longer than its {job_type.timeout:g} s, and its handler swallows "
        f"CancelledError, so it runs on in worker {ctx.worker_id} until that is restarted: let "
        "CancelledError through (`except Exception` does), restart the worker, redrive the job",
        permanent=True,
    )


def _left_threads_failure(job_type: JobType, ctx: JobContext, threads: int) -> Failure:
    # No retry: it would run beside these threads.
    return Failure(
        TIMED_OUT,
        f"{job_type.name} ran longer than its {job_type.timeout:g} s, and {threads} of its calls "
        f"in threads run on in worker {ctx.worker_id}: no thread can be ended. Give what they call "
        'a time limit, or use isolation="process"; redrive the job when they have ended',
        permanent=True,
    )


def _describe_exit(exit_code: int) -> str:
    """Describe how a process has ended that did not answer."""
    if exit_code == -signal.SIGKILL:
        return "was killed by SIGKILL, as the kernel does where memory is short"
    if -exit_code in signal.valid_signals():
        name = signal.Signals(-exit_code).name
        return f"was killed by {name}: the trace in the log says where"
    return f"ended with exit code {exit_code}"


async def _run_alone(job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
    """Run a handler of the event loop in a new process, which ends with it."""
    # Not a process of the pool, which starts all of its processes at once.
    executor = Executor(1)
    try:
        return await executor._run_handler_in_process(job_type, payload, ctx, run_async_job)
    finally:
        await executor.close()


def _is_picklable(handler: Callable[..., Any]) -> bool:
    """Tell whether another process can find the handler: at the top level of its module."""
    try:
        pickle.dumps(handler)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def _picklable_context(ctx: JobContext) -> Mapping[str, Any]:
    return {
        "message": ctx.message,
        "lane": ctx.lane,
        "worker_id": ctx.worker_id,
        "settings": ctx.settings,
        "last_checkpoint": ctx.last_checkpoint,
    }


@contextmanager
def _copying_progress(
    page: SharedProgressReader, progress_buffer: ProgressBuffer
) -> Iterator[None]:
    """Copy the progress on the page to the buffer while the job runs, and at its end, however it
    ends."""
    loop = asyncio.get_running_loop()

    timers: list[asyncio.TimerHandle] = []

    def copy_progress() -> None:
        page.copy_to(progress_buffer)
        timers[:] = [loop.call_later(PROCESS_POLL_INTERVAL, copy_progress)]

    copy_progress()
    try:
        yield
    finally:
        timers[0].cancel()
        page.copy_to(progress_buffer)


def _processor_time_exceeded(job_type: JobType) -> Failure:
    return Failure(
        "ProcessorTimeExceeded",
        f"{job_type.name} took more than its {job_type.cpu_limit} s of processor time, and would "
        "again: it is not tried again",
        permanent=True,
    )


def _memory_exceeded_text(name: str, limit_mb: int | None) -> str:
    return f"{name} took more than its {limit_mb} MiB of memory"
