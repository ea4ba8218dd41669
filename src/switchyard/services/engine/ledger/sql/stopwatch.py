"""Measure the durations of transactions."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from switchyard.services.engine.ledger.sql.dialect import is_sqlite


class Stopwatch:
    """Measures what a transaction takes, in seconds.

    For SQLite, which works in this thread, this is processor time, or a tenth of the clock time if
    that is more, as with a slow disk. On a busy machine, clock time is mostly waiting, and a
    smaller transaction would wait as long.
    """

    def __init__(self, connection: Connection) -> None:
        self._uses_thread_time = is_sqlite(connection)
        self._began = (time.perf_counter(), time.thread_time())

    def seconds(self) -> float:
        """Return the seconds so far."""
        took = time.perf_counter() - self._began[0]
        return (
            max(time.thread_time() - self._began[1], took / 10) if self._uses_thread_time else took
        )
