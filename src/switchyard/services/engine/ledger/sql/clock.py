"""The ledger's clock, by which ages, time limits and due times are measured.

It is the database's clock: for PostgreSQL the server's, for SQLite that of the host with the file.
A process on a host with a wrong clock would expire other people's jobs, or publish them too early.
So each process measures, with its ordinary transactions, how far its host's clock is from the
ledger's, and corrects every time that it records, compares or puts into a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from switchyard.services.engine.ledger.sql.dialect import db_now

T = TypeVar("T")

MEASURE_INTERVAL = 10.0
"""Seconds after which the offset is measured again, with the next use of the ledger."""
TOLERANCE = 0.25
"""Seconds by which a host's clock may differ without a correction: measurements are not more exact,
and uncorrected times of one host keep their order."""
MAX_CLOCK_SKEW = 60.0
"""Seconds by which a lease may end later than its holder can have asked for: see `latest_end`."""
FOREVER = 1e12
"""Seconds, as a number that every database takes."""


def latest_end(now: float, longest: float) -> float:
    """Return the latest time at which a lease of at most `longest` seconds can end. A lease with a
    later end was written before the database's clock was set back, and counts as over: otherwise
    nobody could take it until the clock gets there again."""
    return now + min(longest + MAX_CLOCK_SKEW, FOREVER)


class Clock:
    """The ledger's time, as this process knows it: its host's time, until it first uses the
    ledger."""

    def __init__(self) -> None:
        self.offset = 0.0
        """Seconds to add to the host's time; 0 where the two agree within TOLERANCE."""
        self._measured_at: float | None = None
        self._wall_minus_monotonic = 0.0
        self._log = structlog.get_logger("ledger")

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self.offset

    def now(self) -> datetime:
        """Return the ledger's time as a datetime in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def with_measurement(self, body: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """Return `body`, preceded by a measurement of the offset where one is due."""

        def run(connection: Connection) -> T:
            if self._is_due():
                self._measure(connection)
            return body(connection)

        return run

    def _is_due(self) -> bool:
        if self._measured_at is None or time.monotonic() - self._measured_at > MEASURE_INTERVAL:
            return True
        # Somebody has set the host's clock meanwhile.
        return abs(time.time() - time.monotonic() - self._wall_minus_monotonic) > TOLERANCE

    def _measure(self, connection: Connection) -> None:
        sent, before = time.time(), time.monotonic()
        database_time = db_now(connection)
        took = time.monotonic() - before
        self._measured_at = before + took
        self._wall_minus_monotonic = sent - before
        self._update_offset(database_time - (sent + took / 2), took)

    def _update_offset(self, new_offset: float, uncertainty: float) -> None:
        """Take a new offset, unless it agrees with the known one within the uncertainty."""
        if abs(new_offset) <= max(TOLERANCE, uncertainty):
            new_offset = 0.0
        if abs(new_offset - self.offset) <= max(TOLERANCE, uncertainty):
            return
        self.offset = new_offset
        if new_offset:
            self._log.warning(
                "clock differs from the ledger's, which counts",
                ahead_by=round(-new_offset, 1),
            )
        else:
            self._log.info("clock agrees with the ledger's again")
