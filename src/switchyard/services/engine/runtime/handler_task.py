"""A handler's run in the event loop: in a task of its own, with its time limit.

In a task of its own, the handler's cancellation is told from that of the job's attempt, and a
handler that ignores it blocks nothing. Each job pays for this, so it is written with one timer and
one future: `asyncio.timeout` in the task and `asyncio.wait` around it take twice as long.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.registry import JobType
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.records.results import TIMED_OUT
from switchyard.services.engine.runtime.child import failure_of
from switchyard.services.engine.runtime.handler_threads import ATTEMPT_CALLS, AttemptCalls
from switchyard.services.engine.runtime.running_job import is_from_outside

CANCEL_GRACE = 15.0
"""Seconds for a handler in the event loop to end after its time limit or a cancel, and for what it
calls in threads to end after the time limit. Then its job ends without it, and its slot is free."""


class HandlerTask:
    """The running handler. Made in the event loop that runs it, where it begins soon after."""

    def __init__(self, job_type: JobType, payload: BaseModel, ctx: JobContext) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._job_type = job_type
        self._calls = AttemptCalls(self._on_call_end)
        self._is_late = False
        self._wait_over: asyncio.Future[None] = loop.create_future()
        """Done once the handler has ended and, if it was late, its calls in threads; or
        CANCEL_GRACE after its time limit."""
        self.task = loop.create_task(self._run(payload, ctx))
        self._timer = loop.call_later(job_type.timeout, self._stop_late_handler)

    async def wait(self) -> None:
        """Wait until the handler has ended, or for CANCEL_GRACE after its time limit; `task` tells
        which. A cancelled call cancels the handler, and waits for CANCEL_GRACE before it raises."""
        try:
            await self._wait_over
        except asyncio.CancelledError:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=CANCEL_GRACE)
            raise
        finally:
            self._timer.cancel()
            self._calls.ignore_ends()

    def result(self) -> Any:
        """Return the outcome of a handler that has ended, or a Failure. Raises CancelledError where
        the calling task was cancelled."""
        try:
            return self.task.result()
        except asyncio.CancelledError as error:
            if is_from_outside(error):
                raise
            return (
                time_limit_failure(self._job_type) if self._is_late else Failure.from_error(error)
            )

    def leave_threads(self) -> int:
        """Return how many threads the handler's calls still have, and let others have as many."""
        return self._calls.give_up()

    @property
    def is_late(self) -> bool:
        """Whether the handler was ended at its time limit."""
        return self._is_late

    async def _run(self, payload: BaseModel, ctx: JobContext) -> Any:
        ATTEMPT_CALLS.set(self._calls)
        try:
            return await self._job_type.handler(payload, ctx)
        except BaseException as error:
            if is_from_outside(error):
                raise
            if self._is_late and issubclass(type(error), TimeoutError):
                return time_limit_failure(self._job_type)
            return failure_of(error)
        finally:
            # Another attempt would run beside what still runs in threads.
            if not (self._is_late and self._calls.running):
                self._end_wait()

    def _stop_late_handler(self) -> None:
        self._is_late = True
        self.task.cancel()
        self._timer = self._loop.call_later(CANCEL_GRACE, self._end_wait)

    def _on_call_end(self) -> None:
        if self._is_late and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_wait_after_calls)

    def _end_wait_after_calls(self) -> None:
        if self.task.done() and not self._calls.running:
            self._end_wait()

    def _end_wait(self) -> None:
        if not self._wait_over.done():
            self._wait_over.set_result(None)


def time_limit_failure(job_type: JobType) -> Failure:
    """Return the failure of a handler that was ended at its time limit."""
    return Failure(TIMED_OUT, f"{job_type.name} ran longer than its {job_type.timeout:g} s")
