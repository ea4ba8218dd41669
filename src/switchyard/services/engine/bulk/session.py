"""Run a bulk operation in one process: keep its lease, record its progress, keep to its rate, and
obey the changes that people make meanwhile. Define the protocol of the handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import PermanentFailure, TemporarilyUnavailable
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import ACTIVE, BulkOperation, BulkState
from switchyard.services.engine.records.errors import LedgerError

LEASE_SECONDS = 10.0
"""Seconds after which other processes may take an operation of a process that has died."""
LEASE_RENEW_INTERVAL = 0.25
"""Seconds between renewals of the lease, each of which also reads people's changes."""
LOST = "lost to another process"
"""Reason of a session's end."""

T = TypeVar("T")


class SessionEnded(Exception):
    """Ends the handler: the operation was paused, cancelled, or taken by another process."""


class BulkSession:
    """An operation that this process runs."""

    def __init__(
        self, ledger: Ledger, operation: BulkOperation, holder: str, lease: float = LEASE_SECONDS
    ) -> None:
        self.operation = operation
        """The record as it was last read."""
        self.holder = holder
        """The id of this process's lease: the ledger refuses other processes' writes."""
        self.clock = ledger.clock
        self._ledger = ledger
        self._lease = lease
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._end_reason: str | None = None
        self._slots = RateSlots()

    @property
    def id(self) -> str:
        return self.operation.id

    async def checkpoint(
        self,
        *,
        cursor: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the progress. Ends the handler when the operation must stop."""
        await self.save_progress(cursor=cursor, counts=counts)
        self.check()

    async def save_progress(
        self,
        *,
        cursor: Mapping[str, Any] | None = None,
        counts: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the progress of work that was under way when the handler was ended."""
        await self._write(cursor=cursor, counts=counts)

    async def move(self, state: BulkState, note: str | None = None) -> None:
        """Record another state, or what it waits for. Ends the handler when the operation must
        stop."""
        if (self.operation.state, self.operation.note) != (state, note):
            await self._write(state=state, note=note)
        self.check()

    async def finish(self, state: BulkState = BulkState.COMPLETED, note: str | None = None) -> None:
        """Record the end, or a halt, and why. A cancel that came before stays."""
        await self._write(state=state, note=note)

    def check(self) -> None:
        """End the handler when the operation must stop: it is paused, cancelled or lost."""
        if self._end_reason is None and self.operation.state not in ACTIVE:
            self._end_reason = self.operation.state
        if self._end_reason is not None:
            raise SessionEnded(self._end_reason)

    async def sleep(self, seconds: float) -> None:
        """Sleep, but end the handler as soon as the operation must stop."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                break
        self.check()

    async def run_until_ended(self, work: Awaitable[T]) -> T:
        """Await `work` and return its result, but end the handler as soon as the operation must
        stop."""
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

    async def take_slots(self, count: int, *, until: float | None = None) -> int:
        """Take 1 to `count` slots by the operation's rate, which may change meanwhile, waiting for
        the first; 0 once it is `until` by the ledger's clock."""
        while True:
            self.check()
            if until is not None and self.clock.time() >= until:
                return 0
            number, pause = self._slots.take(count, self.operation.rate)
            if number:
                return number
            # In steps: a rate that is raised meanwhile counts at once.
            await self.sleep(min(pause, LEASE_RENEW_INTERVAL))

    @property
    def rate_wait(self) -> float:
        """Seconds until the operation's rate allows the next job, as far as is known."""
        return self._slots.wait(self.operation.rate)

    def end(self, why: str) -> None:
        """End the handler at its next step."""
        self._end_reason = self._end_reason or why
        self._changed.set()

    def fail_lost(self) -> NoReturn:
        """End the handler: the ledger says that another process holds the operation."""
        self.end(LOST)
        raise SessionEnded(LOST)

    async def renew_lease(self) -> None:
        """Renew the lease, and read people's changes, until cancelled."""
        lost_at = time.monotonic() + self._lease
        while True:
            await asyncio.sleep(LEASE_RENEW_INTERVAL)
            try:
                await self._write()
                lost_at = time.monotonic() + self._lease
            except LedgerError:
                # Another process may have the lease by then. What both do is still done only once.
                if time.monotonic() > lost_at:
                    self.end("ledger away")

    async def _write(self, **changes: Any) -> None:
        async with self._writing:  # otherwise, an older record could arrive last
            operation = await self._ledger.bulk.checkpoint_bulk(
                self.id, self.holder, self._lease, **changes
            )
        if operation is None:
            self.end(LOST)
            return
        if operation.state is not self.operation.state or operation.rate != self.operation.rate:
            self._changed.set()
        self.operation = operation


class BulkFailed(PermanentFailure):
    """Raised by a handler: the operation can't go on, and the text says why."""


class TryLater(TemporarilyUnavailable):
    """Raised by a handler: a service that it needs is away for the moment."""


class BulkHandler(Protocol):
    """Runs the operations of one kind."""

    @property
    def kind(self) -> str: ...

    async def run(self, session: BulkSession) -> None:
        """Continue from the session's cursor until all is done; then call `session.finish`.

        May be cancelled at any `await`: work since the last checkpoint is done again, and
        must do no harm then. Raises BulkFailed, TryLater, PublishError, LedgerError.
        """
        ...


BURST = 0.25
"""Seconds of unused time that may be caught up, so that a pause is not followed by a flood."""


@dataclass(slots=True)
class RateSlots:
    """Spaces one operation's jobs in time. The rate, in jobs per second, may differ at each
    call."""

    _next: float | None = None
    """Monotonic time of the next slot; None before the first."""

    def take(self, count: int, rate: float | None) -> tuple[int, float]:
        """Take up to `count` slots; or 0, and the seconds until there is one."""
        if rate is None:
            self._next = None
            return count, 0.0
        now = time.monotonic()
        if self._next is None:
            self._next = now - BURST
        # Unused time is kept for a moment, or one job and a half, only.
        self._next = max(self._next, now - max(BURST, 1.5 / rate))
        ready = int((now - self._next) * rate)
        # Several at once, where the rate is high: each step costs a round trip.
        least = max(1, min(count, int(rate * BURST / 2)))
        if ready < least:
            return 0, self._next + least / rate - now
        number = min(count, ready)
        self._next += number / rate
        return number, 0.0

    def wait(self, rate: float | None) -> float:
        """Return the seconds until the next slot, as far as is known."""
        if rate is None or self._next is None:
            return 0.0
        return max(0.0, self._next + 1 / rate - time.monotonic())
