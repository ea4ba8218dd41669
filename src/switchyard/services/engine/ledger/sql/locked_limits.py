"""Decide which jobs get a permit and which are woken, on limits that a transaction has locked."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from switchyard.services.engine.ledger.sql.limit_reading import (
    LimitId,
    LockedLimitRows,
    read_waiting,
)
from switchyard.services.engine.records.limits import LimitSize, PermitDemand, RateWindow

MAX_WOKEN = 20
"""Waiting jobs of one limit that are read at once, without those that are skipped."""


@dataclass(slots=True)
class LockedLimit:
    """One limit within a transaction that has locked it."""

    demand: PermitDemand
    now: float
    stored_row: Row[Any]
    """The row as it was read."""
    window: RateWindow
    in_use: int
    reserved: int
    """Permits kept for jobs that were woken and have not come yet."""
    reserved_tokens: int
    somebody_waits: bool
    """Whether a job may wait for this limit; False once none was found."""
    woken: list[str] = field(default_factory=list)

    @classmethod
    def from_rows(cls, demand: PermitDemand, rows: LockedLimitRows) -> LockedLimit:
        limit_id = (demand.name, demand.key)
        row, count = rows.limit_rows[limit_id], rows.counts[limit_id]
        return cls(
            demand=demand,
            now=rows.now,
            stored_row=row,
            window=RateWindow.load(row.bins, rows.now),
            in_use=int(count.in_use),
            reserved=int(count.reserved),
            reserved_tokens=int(count.reserved_tokens),
            somebody_waits=count.first_rank is not None,
        )

    @property
    def size(self) -> LimitSize:
        return self.demand.size

    def release(self, hold: Row[Any], used_tokens: int | None) -> None:
        """Give back a permit; `used_tokens`: None for those that were estimated."""
        if hold.expires_at > self.now:
            self.in_use -= 1
        if used_tokens is not None and self.size.tokens_per_minute is not None:
            more = used_tokens - hold.tokens
            self.window = self.window.corrected(hold.started_second, self.now, more)

    def refusal(self, tokens: int) -> str | None:
        """Return the reason why one more job can't run now; None when it can."""
        maximum = self.size.concurrency
        if maximum is not None and self.in_use + self.reserved >= maximum:
            return f"{self.in_use:,} of {maximum:,} are running"
        wait = self.window.wait(
            self.now, self.size, self.reserved + 1, self.reserved_tokens + tokens
        )
        return self._rate_refusal() if wait else None

    def _rate_refusal(self) -> str:
        parts = []
        if self.size.per_minute is not None:
            parts.append(f"{self.window.jobs:,} of {self.size.per_minute:,} started")
        if self.size.tokens_per_minute is not None:
            maximum = self.size.tokens_per_minute
            parts.append(f"{self.window.tokens:,} of {maximum:,} tokens were used")
        return f"{' and '.join(parts)} in the last minute"

    def wake(self, job_id: str, tokens: int) -> None:
        """Reserve a permit for a job that waits."""
        self.reserved += 1
        self.reserved_tokens += tokens
        self.woken.append(job_id)

    def row(self) -> dict[str, Any]:
        """Return the limit's row as it must be written."""
        size = self.size
        return {
            "name": self.demand.name,
            "key": self.demand.key,
            "concurrency": size.concurrency,
            "per_minute": size.per_minute,
            "tokens_per_minute": size.tokens_per_minute,
            "updated_at": self.now,
            "bins": self.window.dump(),
        }

    def has_changed(self) -> bool:
        """Tell whether the row has to be written: a refused request changes nothing."""
        old, new = self.stored_row, self.row()
        return any(new[name] != getattr(old, name) for name in new if name != "updated_at")


class PermitQueue:
    """The waiting jobs of some limits. They are read when one of them may get a permit, and again
    when all that were read are woken."""

    def __init__(
        self,
        connection: Connection,
        limits: Mapping[LimitId, LockedLimit],
        requesting: Collection[str],
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._requesting = requesting
        """Jobs that request permits in this transaction: they need not be woken."""
        self._waiting: dict[LimitId, deque[Row[Any]]] = {}

    def wake(self, limit: LockedLimit, before: tuple[int, float] | None = None) -> None:
        """Wake waiting jobs in order, while the limit allows it; with `before`, a rank and a time,
        only those that come before a job of that rank that waits since that time."""
        while limit.somebody_waits and limit.refusal(0) is None:
            waiting = self._queue(limit)
            while waiting and (before is None or (waiting[0].rank, waiting[0].since) < before):
                if limit.refusal(waiting[0].tokens) is not None:
                    return
                row = waiting.popleft()
                limit.wake(row.job_id, row.tokens)
            if waiting:
                return

    def _queue(self, limit: LockedLimit) -> deque[Row[Any]]:
        """Return the waiting jobs of a limit that were read and not woken yet; read more if there
        are none."""
        limit_id = (limit.demand.name, limit.demand.key)
        if not self._waiting.get(limit_id):
            # Read for all limits with free permits at once: there may be one for each account.
            limits = {
                other_id: waited_for
                for other_id, waited_for in self._limits.items()
                if waited_for.somebody_waits
                and not self._waiting.get(other_id)
                and waited_for.refusal(0) is None
            }
            maximum = (
                MAX_WOKEN
                + len(self._requesting)
                + max(len(waited_for.woken) for waited_for in limits.values())
            )
            rows = read_waiting(self._connection, limits, limit.now, maximum)
            for other_id, waited_for in limits.items():
                skipped = {*self._requesting, *waited_for.woken}
                self._waiting[other_id] = deque(
                    row for row in rows[other_id] if row.job_id not in skipped
                )
                waited_for.somebody_waits = bool(self._waiting[other_id])
        return self._waiting[limit_id]
