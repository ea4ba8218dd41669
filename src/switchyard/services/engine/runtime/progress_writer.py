"""Write running jobs' progress and checkpoints into the ledger, at most once a second for each job.
The last ones are always written, before the attempt's end is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import structlog

from switchyard.broker.message import JobMessage
from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.engine.jobs.progress_buffer import PendingProgress, ProgressBuffer
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.progress import ProgressRequest, ReportedProgress

WRITE_INTERVAL = 1.0
"""Seconds between two writes for one job."""

OnRecorded = Callable[[ReportedProgress], None]


def _ignore(progress: ReportedProgress) -> None:
    return


@dataclass(frozen=True, slots=True)
class ProgressWriter:
    """Writes the progress and checkpoints of the jobs in this process."""

    ledger: Ledger
    write_interval: float = WRITE_INTERVAL

    def buffer_for(
        self, message: JobMessage, claim_id: str, on_recorded: OnRecorded = _ignore
    ) -> AbstractAsyncContextManager[ProgressBuffer]:
        """Open the buffer of the attempt under that claim, for as long as it runs. `on_recorded` is
        called with recorded progress."""
        return _AttemptProgress(self, message, claim_id, on_recorded)

    async def last_checkpoint(self, message: JobMessage) -> Any:
        """Return the checkpoint of an earlier attempt; None where there is none. Raises
        LedgerError."""
        checkpoint = await self.ledger.progress.last_checkpoint(message)
        return None if checkpoint is None else json.loads(checkpoint)


class _AttemptProgress(AbstractAsyncContextManager[ProgressBuffer]):
    """The progress and checkpoints of one attempt. No task runs for a job without any."""

    def __init__(
        self, writer: ProgressWriter, message: JobMessage, claim_id: str, on_recorded: OnRecorded
    ) -> None:
        self._buffer = ProgressBuffer(self._wake)
        self._writer = writer
        self._message = message
        self._claim_id = claim_id
        self._on_recorded = on_recorded
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> ProgressBuffer:
        return self._buffer

    async def __aexit__(self, *_: object) -> None:
        """Write the last progress, without retries: if the ledger is away, the attempt's end can't
        be recorded either, and that is retried."""
        self._closed = True
        self._buffer.stop_waking()  # breaks a reference cycle
        if self._task is not None:
            await end_tasks(self._task)
        pending = self._buffer.take()
        if pending is not None:
            await self._write(pending)

    def _wake(self) -> None:  # in the handler's thread
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._keep_writing(), name="progress of a job")

    async def _keep_writing(self) -> None:
        try:
            while (pending := self._buffer.take()) is not None:
                await self._write(pending)
                await asyncio.sleep(self._writer.write_interval)
        finally:
            self._task = None

    async def _write(self, pending: PendingProgress) -> None:
        ledger = self._writer.ledger
        request = ProgressRequest(
            self._message, self._claim_id, ledger.clock.time(), pending.progress, pending.checkpoint
        )
        try:
            is_recorded = await ledger.progress.save(request)
        except LedgerError as error:
            structlog.get_logger("worker").warning(
                "progress not recorded",
                job_id=self._message.job_id,
                error=str(error),
            )
            # Progress that the ledger refused for its content would be refused again.
            if isinstance(error, TemporarilyUnavailable):
                self._buffer.put_back(pending)
            return
        if is_recorded and pending.progress is not None:
            self._on_recorded(pending.progress)
