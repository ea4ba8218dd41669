"""Whether anything is due: one look for all that the scheduler does, which is nothing mostly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import Connection, TextClause, text

from switchyard.services.engine.ledger.bulk_operations import free_bulk
from switchyard.services.engine.ledger.sql.dialect import clock_of
from switchyard.services.engine.ledger.sql.pausing import load_pauses, pauses_in_force
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.records.pauses import ActivePauses


@dataclass(frozen=True, slots=True)
class DueWork:
    """Work that is due."""

    jobs: bool
    """Some are to be published: they are due, not confirmed, or of a silent worker."""
    schedules: bool
    """Whether a schedule is to be fired, or its job to be published."""
    limits: bool
    """Whether jobs wait for a named limit."""
    bulk: bool
    """A bulk operation that nobody runs is to be run."""
    pauses: ActivePauses
    """Pauses in force: when they change, jobs may become free."""


class DueWorkReads(Repository):
    """All raise LedgerUnavailable when the database is away."""

    @read
    def look(
        self, connection: Connection, moment: float, *, unconfirmed_before: float, silent_for: float
    ) -> DueWork:
        """Look for jobs that are due at that moment, recorded before another and not confirmed, or
        run by a worker that has been silent for so many seconds; and for what else is due. Times in
        seconds since the epoch."""
        row = connection.execute(
            _due_work(connection.dialect.name),
            {"moment": moment, "before": unconfirmed_before, "silent_for": silent_for},
        ).one()
        jobs, schedules, limits, bulk, paused = map(bool, row)
        pauses = load_pauses(connection) if paused else []
        return DueWork(jobs, schedules, limits, bulk, ActivePauses.from_records(pauses))


@cache  # it is run twice a second, and finds nothing mostly
def _due_work(dialect: str) -> TextClause:
    now = clock_of(dialect)
    # Literal states, for only then are the partial indexes known to fit.
    return text(
        "SELECT "
        "EXISTS (SELECT 1 FROM jobs WHERE state = 'scheduled' AND run_at <= :moment) "
        "OR EXISTS (SELECT 1 FROM jobs WHERE state = 'pending' AND updated_at < :before) "
        "OR EXISTS (SELECT 1 FROM jobs "
        "LEFT JOIN workers ON workers.worker_id = jobs.worker_id "
        "WHERE jobs.state = 'running' AND (workers.worker_id IS NULL "
        "OR workers.stopped_at IS NOT NULL "
        f"OR workers.beat_at < {now} - :silent_for)), "
        "EXISTS (SELECT 1 FROM schedules WHERE paused_at IS NULL "
        f"AND fire_at <= {now}) "
        "OR EXISTS (SELECT 1 FROM schedule_firings WHERE outcome = 'due'), "
        "EXISTS (SELECT 1 FROM limit_waits), "
        f"{free_bulk(dialect)}, "
        f"EXISTS (SELECT 1 {pauses_in_force(dialect)})"
    )
