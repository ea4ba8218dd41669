"""The ledger's clock, by which ages, time limits and due times are measured.

It is that of the database: for PostgreSQL the server's, for SQLite the one of the host that has
the file. A process whose own host goes wrong would expire other people's jobs, or publish them too
early. So each measures, beside its ordinary work, how far its host is from the ledger's time, and
whatever it records, compares or stamps into a message, it corrects by that.
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
"""Seconds by which a host's clock may differ and still count as right: a measurement is not more
exact, and without a correction what happens on one host keeps its order."""
MAX_CLOCK_SKEW = 60.0
"""Seconds by which an end may be later than anybody can have asked for: see `latest_end`."""
FOREVER = 1e12
"""Seconds, as a number that every database takes."""


def latest_end(now: float, longest: float) -> float:
    """Return the latest end of what lasts `longest` seconds at most. What is to end later was
    written while the database's clock was ahead, and is over: nobody would give it back until that
    time comes again."""
    return now + min(longest + MAX_CLOCK_SKEW, FOREVER)


class Clock:
    """The ledger's time, as far as this process knows it: its host's, until the ledger was used."""

    def __init__(self) -> None:
        self.offset = 0.0
        """Seconds to add to the host's time; 0 where the two agree within TOLERANCE."""
        self._measured_at: float | None = None
        self._host_was_ahead = 0.0
        self._log = structlog.get_logger("ledger")

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self.offset

    def now(self) -> datetime:
        """Return the ledger's time as a datetime in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    def measured(self, work: Callable[[Connection], T]) -> Callable[[Connection], T]:
        """Return `work`, preceded by a measurement of the offset where one is due."""

        def run(connection: Connection) -> T:
            if self._is_due():
                self._measure(connection)
            return work(connection)

        return run

    def _is_due(self) -> bool:
        if self._measured_at is None or time.monotonic() - self._measured_at > MEASURE_INTERVAL:
            return True
        # Somebody has set the host's clock meanwhile.
        return abs(time.time() - time.monotonic() - self._host_was_ahead) > TOLERANCE

    def _measure(self, connection: Connection) -> None:
        sent, before = time.time(), time.monotonic()
        theirs = db_now(connection)
        took = time.monotonic() - before
        self._measured_at = before + took
        self._host_was_ahead = sent - before
        self._correct(theirs - (sent + took / 2), took)

    def _correct(self, measured: float, uncertain: float) -> None:
        """Take a new offset, unless it agrees with the known one within the uncertainty."""
        if abs(measured) <= max(TOLERANCE, uncertain):
            measured = 0.0
        if abs(measured - self.offset) <= max(TOLERANCE, uncertain):
            return
        self.offset = measured
        if measured:
            self._log.warning(
                "clock differs from the ledger's, which counts",
                ahead_by=round(-measured, 1),
            )
        else:
            self._log.info("clock agrees with the ledger's again")
