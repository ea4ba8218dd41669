"""Named limits within a transaction that has locked them: who has room, and who is called to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from switchyard.services.engine.ledger.sql.limit_reading import LockedLimitRows, Place, read_waiting
from switchyard.services.engine.records.limits import LimitSize, PermitDemand, RateWindow

MAX_WOKEN = 20
"""Jobs that are called together at most."""


@dataclass(slots=True)
class LockedLimit:
    """One limit within a transaction that has locked it."""

    need: PermitDemand
    now: float
    kept_row: Row[Any]
    """As it was found."""
    window: RateWindow
    in_use: int
    kept: int
    """Jobs that were called, and not come yet."""
    kept_tokens: int
    somebody_waits: bool
    """Whom this transaction may call, as far as it knows."""
    called: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, need: PermitDemand, found: LockedLimitRows) -> LockedLimit:
        place = (need.name, need.key)
        row, count = found.bins[place], found.counts[place]
        return cls(
            need=need,
            now=found.now,
            kept_row=row,
            window=RateWindow.load(row.bins, found.now),
            in_use=int(count.first),
            kept=int(count.second),
            kept_tokens=int(count.third),
            somebody_waits=count.until is not None,
        )

    @property
    def room(self) -> LimitSize:
        return self.need.size

    def end(self, hold: Row[Any], used_tokens: int | None) -> None:
        """A job has ended, and used so many tokens; None: those that were estimated."""
        if hold.until > self.now:
            self.in_use -= 1
        if used_tokens is not None and self.room.tokens_per_minute is not None:
            more = used_tokens - hold.second
            self.window = self.window.corrected(hold.first, self.now, more)

    def missing(self, tokens: int) -> str | None:
        """Why one job more can't run now; None when it can."""
        most = self.room.concurrency
        if most is not None and self.in_use + self.kept >= most:
            return f"{self.in_use:,} of {most:,} are running"
        wait = self.window.wait(self.now, self.room, self.kept + 1, self.kept_tokens + tokens)
        return self._why_rates() if wait else None

    def _why_rates(self) -> str:
        parts = []
        if self.room.per_minute is not None:
            parts.append(f"{self.window.jobs:,} of {self.room.per_minute:,} started")
        if self.room.tokens_per_minute is not None:
            most = self.room.tokens_per_minute
            parts.append(f"{self.window.tokens:,} of {most:,} tokens were used")
        return f"{' and '.join(parts)} in the last minute"

    def wake(self, job_id: str, tokens: int) -> None:
        """Keep room for a job that waits."""
        self.kept += 1
        self.kept_tokens += tokens
        self.called.append(job_id)

    def row(self) -> dict[str, Any]:
        """As it is to be kept."""
        room = self.room
        return {
            "name": self.need.name,
            "key": self.need.key,
            "concurrency": room.concurrency,
            "per_minute": room.per_minute,
            "tokens_per_minute": room.tokens_per_minute,
            "updated_at": self.now,
            "bins": self.window.dump(),
        }

    def has_changed(self) -> bool:
        """Whether there is anything to keep. Who only found no room has changed nothing."""
        old, new = self.kept_row, self.row()
        return any(new[name] != getattr(old, name) for name in new if name != "updated_at")


class PermitQueue:
    """Who waits for some limits: read when there is room for somebody, and again when all of these
    were called and there may be more."""

    def __init__(
        self, connection: Connection, limits: Mapping[Place, LockedLimit], here: Collection[str]
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._here = here
        """Those that came by themselves: nobody calls them."""
        self._waiting: dict[Place, deque[Row[Any]]] = {}

    def wake(self, limit: LockedLimit, before: float | None = None) -> None:
        """Call those that have waited longest, as far as there is room; only those that have
        waited since `before`."""
        while limit.somebody_waits and limit.missing(0) is None:
            waiting = self._of(limit)
            while waiting and (before is None or waiting[0].since < before):
                if limit.missing(waiting[0].tokens) is not None:
                    return
                row = waiting.popleft()
                limit.wake(row.job_id, row.tokens)
            if waiting:
                return

    def _of(self, limit: LockedLimit) -> deque[Row[Any]]:
        """Those that wait for it; none, once there are none left."""
        place = (limit.need.name, limit.need.key)
        if not self._waiting.get(place):
            # Of all limits with room at once: there may be one for each account.
            asked = {
                each: one
                for each, one in self._limits.items()
                if one.somebody_waits and not self._waiting.get(each) and one.missing(0) is None
            }
            most = MAX_WOKEN + len(self._here) + max(len(one.called) for one in asked.values())
            found = read_waiting(self._connection, asked, limit.now, most)
            for each, one in asked.items():
                known = {*self._here, *one.called}
                self._waiting[each] = deque(row for row in found[each] if row.job_id not in known)
                one.somebody_waits = bool(self._waiting[each])
        return self._waiting[place]
