"""Measure the durations of transactions."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from switchyard.services.engine.ledger.sql.dialect import is_sqlite


class Stopwatch:
    """Measures what a transaction takes, in seconds.

    Of SQLite, whose work is done in this thread, processor time: on a busy machine the clock says
    how long the thread was kept waiting, and a smaller transaction would wait as long. Of the clock
    a tenth counts, for slow disks.
    """

    def __init__(self, connection: Connection) -> None:
        self._is_here = is_sqlite(connection)
        self._began = (time.perf_counter(), time.thread_time())

    def seconds(self) -> float:
        """Return the seconds so far."""
        took = time.perf_counter() - self._began[0]
        return max(time.thread_time() - self._began[1], took / 10) if self._is_here else took
