"""Bulk operations: long, visible, resumable work on many jobs (backfills, redrives).

An operation is a record in the ledger. A `BulkRunner` (in every scheduler, or in the foreground of
a command) takes one that nobody runs and hands it to the handler of its kind as a `BulkSession`.
The handler works in small steps and notes each with a checkpoint, from which another process can go
on at any time. What people want meanwhile (`services.bulk.control`) reaches it within half a
second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import structlog

from switchyard.broker.background import Background, end_tasks
from switchyard.broker.errors import PublishError
from switchyard.services.bulk.control import BulkConflict, require_bulk
from switchyard.services.errors import Failed, NotNow
from switchyard.services.instance import new_instance_id
from switchyard.services.ledger import Ledger
from switchyard.services.records import ACTIVE, BulkOperation, BulkState, LedgerError

LEASE = 10.0
"""Seconds after which an operation is taken from a process that has died."""
LISTEN = 0.25
"""Seconds between looks at what people want of an operation."""
LOOK = 1.0
"""Seconds between looks for operations that nobody runs."""
AT_ONCE = 8
"""Operations that one process runs at once."""
FIRST_PAUSE, LAST_PAUSE = 1.0, 30.0
"""Seconds before an operation goes on after the broker, the ledger or a source was away."""
LOST = "lost to another process"

T = TypeVar("T")


class BulkFailed(Failed):
    """Raised by a handler: the operation can't go on, and the text says why."""


class TryLater(NotNow):
    """Raised by a handler: something that it needs is away for the moment."""


class _LetGo(Exception):
    """The operation is not this process's any more, or not for now."""


class BulkHandler(Protocol):
    """What runs the operations of one kind."""

    @property
    def kind(self) -> str: ...

    async def run(self, session: BulkSession) -> None:
        """Go on from the session's cursor until all is done; then call `session.finish`.

        May be cut off at any `await`: what was done since the last checkpoint is done again, and
        must do no harm then. Raises BulkFailed, TryLater, PublishError, LedgerError.
        """
        ...


class BulkSession:
    """One process's hold of one operation."""

    def __init__(self, ledger: Ledger, operation: BulkOperation, holder: str) -> None:
        self.operation = operation
        """The record as it was last seen."""
        self.holder = holder
        """Who holds it: what the ledger's writes for this operation are fenced by."""
        self.clock = ledger.clock
        self._ledger = ledger
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._gone: str | None = None
        self._next_slot: float | None = None

    @property
    def id(self) -> str:
        return self.operation.id

    async def checkpoint(
        self,
        *,
        cursor: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        """Note how far it has come. Ends the handler when the operation is not to go on."""
        await self.record(cursor=cursor, counts=counts)
        self.check()

    async def record(
        self,
        *,
        cursor: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        """Note how far it has come; for what was under way when the handler was ended."""
        await self._write(cursor=cursor, counts=counts)

    async def move(self, state: BulkState, note: str | None = None) -> None:
        """Show another state, or what is waited for. Ends the handler when it is not to go on."""
        if (self.operation.state, self.operation.note) != (state, note):
            await self._write(state=state, note=note)
        self.check()

    async def finish(self, state: BulkState = BulkState.COMPLETED, note: str | None = None) -> None:
        """The end, or a halt, and why. Somebody's cancel that came before stays."""
        await self._write(state=state, note=note)

    def check(self) -> None:
        """End the handler when the operation is not to go on: paused, cancelled, lost."""
        if self._gone is None and self.operation.state not in ACTIVE:
            self._gone = self.operation.state
        if self._gone is not None:
            raise _LetGo(self._gone)

    async def sleep(self, seconds: float) -> None:
        """Wait, or end the handler as soon as the operation is not to go on."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        self.check()

    async def unless_gone(self, work: Awaitable[T]) -> T:
        """What `work` gives, or end the handler as soon as the operation is not to go on."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self.check()
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
            return task.result()
        finally:
            await end_tasks(task)

    async def take_slots(self, wanted: int, *, until: float | None = None) -> int:
        """How many jobs may be published now, 1 to `wanted`, waiting for the first by the
        operation's rate, which may change meanwhile; 0 once it is `until` by the ledger's clock."""
        while True:
            self.check()
            if until is not None and self.clock.time() >= until:
                return 0
            rate = self.operation.rate
            if rate is None:
                self._next_slot = None
                return wanted
            now = time.monotonic()
            # Unused time is kept for a moment, or one job and a half, only: a rate is no average
            # over an hour.
            if self._next_slot is None:
                self._next_slot = now - LISTEN
            self._next_slot = max(self._next_slot, now - max(LISTEN, 1.5 / rate))
            ready = int((now - self._next_slot) * rate)
            # Several at once, where the rate is high: each step costs a round trip.
            least = max(1, min(wanted, int(rate * LISTEN / 2)))
            if ready >= least:
                taken = min(wanted, ready)
                self._next_slot += taken / rate
                return taken
            # In steps: a rate that is raised meanwhile counts at once.
            await self.sleep(min(self._next_slot + least / rate - now, LISTEN))

    @property
    def slot_wait(self) -> float:
        """Seconds until something may be published by the operation's rate, as far as is known."""
        rate = self.operation.rate
        if rate is None or self._next_slot is None:
            return 0.0
        return max(0.0, self._next_slot + 1 / rate - time.monotonic())

    def let_go(self, why: str) -> None:
        """End the handler at its next step."""
        self._gone = self._gone or why
        self._changed.set()

    def lose(self) -> NoReturn:
        """End the handler: the ledger says that another process holds the operation."""
        self.let_go(LOST)
        raise _LetGo(LOST)

    async def listen(self) -> None:
        """Keep the hold, and hear what people want, until cancelled."""
        lost_at = time.monotonic() + LEASE
        while True:
            await asyncio.sleep(LISTEN)
            try:
                await self._write()
                lost_at = time.monotonic() + LEASE
            except LedgerError:
                # Somebody else may have it by then; what both do is done once all the same.
                if time.monotonic() > lost_at:
                    self.let_go("ledger away")

    async def _write(self, **changes: Any) -> None:
        async with self._writing:  # or an older answer could come last
            seen = await self._ledger.checkpoint_bulk(self.id, self.holder, LEASE, **changes)
        if seen is None:
            self.let_go(LOST)
            return
        if seen.state is not self.operation.state or seen.rate != self.operation.rate:
            self._changed.set()
        self.operation = seen


class BulkRunner:
    """Runs operations of the kinds that it has handlers for, until `stop`."""

    def __init__(self, ledger: Ledger, handlers: Sequence[BulkHandler]) -> None:
        self.holder = new_instance_id()
        self._ledger = ledger
        self._handlers = {handler.kind: handler for handler in handlers}
        self._sessions: dict[str, BulkSession] = {}
        self._stopping = asyncio.Event()
        self._log = structlog.get_logger("bulk").bind(holder=self.holder)

    async def run(self) -> None:
        """Take operations that nobody runs, until `stop`."""
        tasks: set[asyncio.Task[None]] = set()
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                operation = await self._claim() if len(tasks) < AT_ONCE else None
                if operation is not None and operation.id in self._sessions:
                    continue  # our own hold had run out: now it is renewed
                if operation is not None:
                    tasks.add(asyncio.create_task(self._hold(operation), name=operation.id))
                    continue
                await asyncio.wait({stopped}, timeout=LOOK)
                for task in [task for task in tasks if task.done()]:
                    tasks.remove(task)
                    await task
        finally:
            stopped.cancel()
            for session in self._sessions.values():
                session.let_go("stopping")
            if tasks:
                await asyncio.wait(tasks, timeout=LEASE)
            await end_tasks(*tasks)

    def stop(self) -> None:
        """End at the next checkpoints; safe in a signal handler."""
        self._stopping.set()
        for session in self._sessions.values():
            session.let_go("stopping")

    async def run_one(self, operation_id: str) -> BulkOperation:
        """Run one operation in the foreground until it ends, is paused or halts, or `stop`.

        Returns its record then. Raises BulkConflict when another process runs it, BulkFailed.
        """
        while True:
            operation = await self._ledger.claim_bulk(
                self.holder, LEASE, kinds=self._handlers, operation_id=operation_id
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
            return await self._ledger.claim_bulk(self.holder, LEASE, kinds=self._handlers)
        except LedgerError as error:
            self._log.warning("ledger away", error=str(error))
            return None

    async def _hold(self, operation: BulkOperation) -> None:
        session = BulkSession(self._ledger, operation, self.holder)
        self._sessions[operation.id] = session
        log = self._log.bind(operation=operation.id)
        listening = Background(log)
        listening.start(f"listen {operation.id}", session.listen)
        log.info("running", title=operation.title)
        try:
            await self._carry_on(session, log)
        except _LetGo as gone:
            log.info("let go", why=str(gone))
        finally:
            await listening.close()
            del self._sessions[operation.id]
            try:
                await self._ledger.release_bulk(operation.id, self.holder)
            except LedgerError as error:
                log.warning("can't release", error=str(error))

    async def _carry_on(
        self, session: BulkSession, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        handler = self._handlers[session.operation.kind]
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                waits = session.operation.state is BulkState.WAITING
                await session.move(BulkState.RUNNING if waits else session.operation.state)
                await handler.run(session)
                log.info("ended", state=session.operation.state, counts=session.operation.counts)
                return
            except _LetGo:
                raise
            except (TryLater, PublishError, LedgerError) as error:
                if time.monotonic() - began > LAST_PAUSE:
                    pause = FIRST_PAUSE
                log.warning("tries again", error=str(error), seconds=pause)
                await self._note(session, session.operation.state, f"tries again: {error}")
                await session.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE)
            except BulkFailed as error:
                log.warning("failed", error=str(error))
                await self._note(session, BulkState.FAILED, str(error))
                return
            except Exception as error:
                log.exception("failed")
                await self._note(session, BulkState.FAILED, f"{type(error).__name__}: {error}")
                return

    async def _note(self, session: BulkSession, state: BulkState, note: str) -> None:
        """Show it where that is possible; whoever goes on will find the same."""
        try:
            await session.finish(state, note)
        except LedgerError as error:
            self._log.warning("ledger away", error=str(error))
