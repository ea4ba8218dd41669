"""Run background tasks, each watched from its start to its end.

A task that nobody waits for can end unnoticed, and leave a process behind that looks alive and does
half its work. So tasks that run as long as their owner are started here. Tasks that end, and whose
owner waits for them, need none of this.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from structlog.typing import FilteringBoundLogger

FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
"""Seconds until a task that has ended is started again: doubled from the first to the last."""
BACKOFF_RESET_AFTER = 60.0
"""Seconds after which a task that runs has recovered: its failures are counted anew."""
VITAL_TRIES = 3
"""Failures in a row of a vital task after which its owner has to end."""
CANCEL_RETRY_INTERVAL = 0.2
"""Seconds after which a cancelled task that goes on is cancelled once more."""

TaskFactory = Callable[[], Coroutine[Any, Any, None]]


class BackgroundFailed(Exception):
    """A vital task can't be kept running; the cause is its last error."""


class TaskSupervisor:
    """Keeps the background tasks of one owner running; the owner calls `close` at its end.

    A task that ends before it is cancelled is logged as an error and started again, with backoff.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None

    def start(self, name: str, work: TaskFactory, *, vital: bool = False) -> None:
        """Keep `work()` running. A `vital` one that fails VITAL_TRIES times in a row is given up:
        then `failed` is done, and whoever owns the process has to end it."""
        self._tasks.add(asyncio.create_task(self._keep(name, work, vital), name=name))

    @property
    def failed(self) -> asyncio.Future[None]:
        """Fails with BackgroundFailed when a vital task was given up; never done before."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return self._failed

    async def close(self) -> None:
        """End all tasks, and wait until they have ended."""
        tasks = tuple(self._tasks)
        self._tasks.clear()
        await end_tasks(*tasks)
        if self._failed is not None and not self._failed.done():
            self._failed.cancel()

    async def _keep(self, name: str, work: TaskFactory, vital: bool) -> None:
        pause, failures = FIRST_PAUSE, 0
        while True:
            began = time.monotonic()
            error = await self._run_to_end(work)
            if time.monotonic() - began >= BACKOFF_RESET_AFTER:
                pause, failures = FIRST_PAUSE, 0
            failures += 1
            gives_up = vital and failures >= VITAL_TRIES
            self._log.error(
                "background task ended",
                task=name,
                error=repr(error) if error is not None else "it returned",
                starts_again_in=None if gives_up else pause,
                exc_info=error,
            )
            if gives_up:
                self._give_up(name, failures, error)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _run_to_end(self, work: TaskFactory) -> BaseException | None:
        """Run the work; return the error that ended it, None if it returned. Raises CancelledError
        where this task itself is cancelled."""
        try:
            await work()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return error  # raised by a library: nobody has cancelled this task
        except GeneratorExit:  # the event loop is gone
            raise
        except BaseException as error:  # such as a panic in Rust code
            return error
        return None

    def _give_up(self, name: str, failures: int, error: BaseException | None) -> None:
        failure = BackgroundFailed(f"{name} has failed {failures} times in a row: {error!r}")
        failure.__cause__ = error
        if not self.failed.done():
            self.failed.set_exception(failure)
            self.failed.exception()  # an owner that is ending already need not ask


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until all have ended; what they raise stays in them.

    Cancelling once is not enough: before Python 3.12, `asyncio.wait_for` (in every call of
    aiormq) forgets a cancellation that comes at the moment at which it has its result.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_RETRY_INTERVAL)
