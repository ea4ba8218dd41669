"""Running one handler: in the event loop, or in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import signal
from collections.abc import Mapping
from concurrent.futures import TimeoutError as PoolTimeout
from typing import Any

from pebble import ProcessExpired, ProcessPool
from pydantic import BaseModel

from switchyard.services.jobs.context import JobContext
from switchyard.services.jobs.outcomes import Snooze
from switchyard.services.jobs.registry import Handler, JobType
from switchyard.services.jobs.retry import Failure
from switchyard.services.records import LedgerUnavailable

LEDGER_AWAY_PAUSE = 5.0
"""Seconds until a job runs again whose handler could not reach the ledger."""
TASKS_PER_PROCESS = 100
"""A process is replaced after so many jobs, so that what a C library leaks stays bounded."""


class Executor:
    """Runs handlers for one kind of worker. `processes` is how many may run at once, outside
    the event loop; none is started before the first job that needs one."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._pool: ProcessPool | None = None

    async def run(self, job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
        """The handler's answer, or a Failure: an exception or a time limit never escapes.

        Cancelling this call cancels the handler; a handler's process is killed.
        """
        if job_type.isolation == "process":
            return await self._run_in_process(job_type, payload, ctx)
        limit = asyncio.timeout(job_type.timeout)
        try:
            async with limit:
                return await job_type.handler(payload, ctx)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Failure.of(error)  # of something that the handler had waited for
        except LedgerUnavailable as error:
            # Not the job's fault: it must not cost an attempt.
            return Snooze(LEDGER_AWAY_PAUSE, str(error))
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and limit.expired():
                return _too_slow(job_type)
            return Failure.of(error)

    async def _run_in_process(self, job_type: JobType, payload: BaseModel, ctx: JobContext) -> Any:
        if self._pool is not None and not self._pool.active:
            await self.close()  # it broke, as when an idle process of it was killed
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self._processes,
                max_tasks=TASKS_PER_PROCESS,
                initializer=_prepare_process,
                # A forked child would share the parent's sockets and locks.
                context=multiprocessing.get_context("spawn"),
            )
        running = self._pool.schedule(
            _call,
            args=[job_type.handler, payload, _portable(ctx), job_type.memory_limit_mb],
            timeout=job_type.timeout,
        )
        try:
            return await asyncio.wrap_future(running)
        except PoolTimeout:
            return _too_slow(job_type)
        except ProcessExpired as error:
            return Failure(
                "ProcessCrashed",
                f"the handler's process ended with exit code {error.exitcode}",
                crashed=True,
            )
        except Exception as error:
            # What can't be pickled comes back as an error of the pool.
            return Failure.of(error)

    async def close(self) -> None:
        """End the processes, killing what still runs."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            await asyncio.to_thread(pool.join)


def _portable(ctx: JobContext) -> Mapping[str, Any]:
    return {
        "message": ctx.message,
        "lane": ctx.lane,
        "worker_id": ctx.worker_id,
        "settings": ctx.settings,
    }


def _prepare_process() -> None:
    # Ctrl-C reaches the whole process group; the parent decides what becomes of its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _call(
    handler: Handler, payload: BaseModel, ctx: Mapping[str, Any], memory_limit_mb: int | None
) -> Any:
    """Runs in the child. Failures are classified here: not every exception can be pickled."""
    # The process may have had a job with another limit before.
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = hard if memory_limit_mb is None else memory_limit_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        return handler(payload, JobContext(**ctx))
    except (Exception, SystemExit) as error:
        return Failure.of(error)


def _too_slow(job_type: JobType) -> Failure:
    return Failure(
        "TimeLimitExceeded", f"{job_type.name} ran longer than its {job_type.timeout:g} s"
    )
