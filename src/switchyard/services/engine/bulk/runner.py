"""Run bulk operations: long, visible, resumable work on many jobs (backfills, redrives, purges).

An operation is a record in the ledger. A `BulkRunner` (in every scheduler, or in the foreground of
a command) takes one that nobody runs and hands it to the handler of its kind as a `BulkSession`.
The handler works in small steps and records each with a checkpoint, from which another process can
continue at any time. A change that somebody makes meanwhile (`services.engine.bulk.control`)
reaches the handler within half a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from switchyard.broker.consume.listening import run_until_event
from switchyard.broker.errors import PublishError
from switchyard.broker.task_supervisor import TaskSupervisor, end_tasks
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.engine.bulk.control import BulkConflict, require_bulk
from switchyard.services.engine.bulk.session import (
    LEASE_SECONDS,
    BulkFailed,
    BulkHandler,
    BulkSession,
    SessionEnded,
    TryLater,
)
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import ACTIVE, BulkHold, BulkOperation, BulkState
from switchyard.services.engine.records.errors import LedgerError

CLAIM_POLL_INTERVAL = 1.0
"""Seconds between checks for operations that nobody runs, at least."""
MAX_CONCURRENT = 8
"""Operations that one process runs at once."""
MIN_RETRY_PAUSE, MAX_RETRY_PAUSE = 1.0, 30.0
"""Seconds before an operation goes on after the broker, the ledger or a source was away."""


class BulkRunner:
    """Runs operations of the kinds that it has handlers for, until `stop`."""

    def __init__(
        self,
        ledger: Ledger,
        handlers: Sequence[BulkHandler],
        *,
        lease: float = LEASE_SECONDS,
        when_due: asyncio.Event | None = None,
    ) -> None:
        """`lease`: seconds after which others take what this process holds, once it has died.
        `when_due` is set when there may be an operation that nobody runs; without it, one is looked
        for every CLAIM_POLL_INTERVAL seconds."""
        self.hold = BulkHold(new_instance_id(), lease)
        """Hold with which an operation can be started for this process alone, which then runs it
        with `run_one`."""
        self._ledger = ledger
        self._handlers = {handler.kind: handler for handler in handlers}
        self._sessions: dict[str, BulkSession] = {}
        self._when_due = when_due
        self._stopping = asyncio.Event()
        self._log = structlog.get_logger("bulk").bind(holder=self.hold.holder)

    async def run(self) -> None:
        """Take operations that nobody runs, until `stop`."""
        tasks: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                operation = await self._claim() if len(tasks) < MAX_CONCURRENT else None
                if operation is not None and operation.id in self._sessions:
                    continue  # our own hold had run out: now it is renewed
                if operation is not None:
                    tasks.add(asyncio.create_task(self._hold(operation), name=operation.id))
                    continue
                await asyncio.wait({stopped}, timeout=CLAIM_POLL_INTERVAL)
                if self._when_due is not None:
                    await run_until_event(
                        self._when_due,
                        asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED),
                    )
                    self._when_due.clear()
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    await task
        finally:
            stopped.cancel()
            for session in self._sessions.values():
                session.end("stopping")
            if tasks:
                await asyncio.wait(tasks, timeout=self.hold.seconds)
            await end_tasks(*tasks)

    def stop(self) -> None:
        """End at the next checkpoints; safe in a signal handler."""
        self._stopping.set()
        for session in self._sessions.values():
            session.end("stopping")

    async def run_one(self, operation_id: str) -> BulkOperation:
        """Run one operation in the foreground until it ends, is paused or halts, or `stop`.

        Returns its record then. Raises BulkConflict when another process runs it, BulkFailed.
        """
        while True:
            operation = await self._ledger.bulk.claim_bulk(
                self.hold, kinds=self._handlers, operation_id=operation_id
            )
            if operation is not None:
                await self._hold(operation)
            current = await require_bulk(self._ledger, operation_id)
            if current.state not in ACTIVE or self._stopping.is_set():
                return current
            if operation is None:
                raise BulkConflict(f"{operation_id} is run by another process: {current.holder}")

    async def _claim(self) -> BulkOperation | None:
        try:
            if not await self._ledger.bulk.has_free_bulk():
                return None
            return await self._ledger.bulk.claim_bulk(self.hold, kinds=self._handlers)
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))
            return None

    async def _hold(self, operation: BulkOperation) -> None:
        session = BulkSession(self._ledger, operation, self.hold.holder, self.hold.seconds)
        self._sessions[operation.id] = session
        log = self._log.bind(operation=operation.id)
        listening = TaskSupervisor(log)
        listening.start(f"listen {operation.id}", session.renew_lease)
        log.info("bulk operation started", title=operation.title)
        try:
            await self._run_handler(session, log)
        except SessionEnded as session_end:
            log.info("bulk operation released", reason=str(session_end))
        finally:
            await listening.close()
            del self._sessions[operation.id]
            try:
                await self._ledger.bulk.release_bulk(operation.id, self.hold.holder)
            except LedgerError as error:
                log.warning("bulk operation not released", error=str(error))

    async def _run_handler(
        self, session: BulkSession, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        handler = self._handlers[session.operation.kind]
        pause = MIN_RETRY_PAUSE
        while True:
            began = time.monotonic()
            try:
                waits = session.operation.state is BulkState.WAITING
                await session.move(BulkState.RUNNING if waits else session.operation.state)
                await handler.run(session)
                log.info(
                    "bulk operation ended",
                    state=session.operation.state,
                    counts=session.operation.counts,
                )
                return
            except SessionEnded:
                raise
            except (TryLater, PublishError, LedgerError) as error:
                if time.monotonic() - began > MAX_RETRY_PAUSE:
                    pause = MIN_RETRY_PAUSE
                log.warning("bulk operation retried", error=str(error), seconds=pause)
                await self._finish(session, session.operation.state, f"tries again: {error}")
                await session.sleep(pause)
                pause = min(pause * 2, MAX_RETRY_PAUSE)
            except BulkFailed as error:
                log.warning("bulk operation failed", error=str(error))
                await self._finish(session, BulkState.FAILED, str(error))
                return
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # a panic of Rust in a source's library, for one
                failure = Failure.from_error(error)
                text = f"{failure.error_type}: {failure.message}"
                await self._finish(session, BulkState.FAILED, text)
                # As text: an exception may be one that can't be shown.
                log.error("bulk operation failed", error=text, traceback=failure.traceback)  # noqa: TRY400
                return

    async def _finish(self, session: BulkSession, state: BulkState, note: str) -> None:
        """Record the state and the note, unless the ledger is unreachable."""
        try:
            await session.finish(state, note)
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))
