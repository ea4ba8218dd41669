"""Write running jobs' progress and checkpoints into the ledger: at most once a second for each job,
and the last ones in any case, before its attempt's end is recorded."""

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
from switchyard.services.engine.records.progress import NoteRequest, ReportedProgress

WRITE_INTERVAL = 1.0
"""Seconds between two writes for one job."""

Heard = Callable[[ReportedProgress], None]


def _no_one(progress: ReportedProgress) -> None:
    return


@dataclass(frozen=True, slots=True)
class ProgressWriter:
    """Takes the notes of the jobs that run in this process."""

    ledger: Ledger
    pause: float = WRITE_INTERVAL

    def buffer_for(
        self, message: JobMessage, claim_id: str, heard: Heard = _no_one
    ) -> AbstractAsyncContextManager[ProgressBuffer]:
        """Open what the attempt under that claim writes into, for as long as it runs. `heard` is
        called with progress that is recorded."""
        return _Writing(self, message, claim_id, heard)

    async def last_checkpoint(self, message: JobMessage) -> Any:
        """Return what an earlier attempt has kept; None where there is nothing. Raises
        LedgerError."""
        checkpoint = await self.ledger.progress.last_checkpoint(message)
        return None if checkpoint is None else json.loads(checkpoint)


class _Writing(AbstractAsyncContextManager[ProgressBuffer]):
    """The notes of one attempt. Nothing runs for a job that says nothing."""

    def __init__(
        self, taker: ProgressWriter, message: JobMessage, claim_id: str, heard: Heard
    ) -> None:
        self._buffer = ProgressBuffer(self._wake)
        self._taker = taker
        self._message = message
        self._claim_id = claim_id
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> ProgressBuffer:
        return self._buffer

    async def __aexit__(self, *_: object) -> None:
        """Write the last word. Once: whatever keeps the ledger away keeps away the attempt's end,
        too, which is what counts."""
        self._closed = True
        self._buffer.wake_nobody()  # else each would keep the other until it is collected
        if self._task is not None:
            await end_tasks(self._task)
        notes = self._buffer.take()
        if notes is not None:
            await self._write(notes)

    def _wake(self) -> None:  # in the handler's thread
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._write_on(), name="notes of a job")

    async def _write_on(self) -> None:
        try:
            while (notes := self._buffer.take()) is not None:
                await self._write(notes)
                await asyncio.sleep(self._taker.pause)
        finally:
            self._task = None

    async def _write(self, notes: PendingProgress) -> None:
        ledger = self._taker.ledger
        request = NoteRequest(
            self._message, self._claim_id, ledger.clock.time(), notes.progress, notes.checkpoint
        )
        try:
            counts = await ledger.progress.note(request)
        except LedgerError as error:
            structlog.get_logger("worker").warning(
                "the progress of a job could not be recorded",
                job_id=self._message.job_id,
                error=str(error),
            )
            if isinstance(
                error, TemporarilyUnavailable
            ):  # a note that is refused would be refused again
                self._buffer.put_back(notes)
            return
        if counts and notes.progress is not None:
            self._heard(notes.progress)
