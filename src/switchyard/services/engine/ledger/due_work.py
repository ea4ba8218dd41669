"""Tell whether any work is due: one query for all duties of the scheduler, which mostly finds
none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import Connection, TextClause, text

from switchyard.services.engine.ledger.bulk_operations import free_bulk_condition
from switchyard.services.engine.ledger.sql.dialect import now_sql_of
from switchyard.services.engine.ledger.sql.pausing import load_pauses, pauses_in_force
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.records.pauses import ActivePauses


@dataclass(frozen=True, slots=True)
class DueWork:
    """Kinds of work that are due."""

    jobs: bool
    """Whether jobs are to be published: they are due, not confirmed, or their worker is silent."""
    schedules: bool
    """Whether a schedule is to be fired, or its job to be published."""
    limits: bool
    """Whether jobs wait for a named limit."""
    bulk: bool
    """Whether there is a bulk operation that no process runs."""
    pauses: ActivePauses
    """Pauses in force: when they change, held jobs may have to be published."""


class DueWorkReads(Repository):
    """Finds work that is due. All methods raise LedgerUnavailable when the database is away."""

    @read
    def find_due(
        self, connection: Connection, now: float, *, unconfirmed_before: float, silent_for: float
    ) -> DueWork:
        """Find due work of all kinds. Jobs count when they are due at `now`, were recorded
        before `unconfirmed_before` and are not confirmed, or run in a worker that has been silent
        for `silent_for` seconds. The other times are seconds since the epoch."""
        row = connection.execute(
            _due_work(connection.dialect.name),
            {"now": now, "before": unconfirmed_before, "silent_for": silent_for},
        ).one()
        jobs, schedules, limits, bulk, paused = map(bool, row)
        pauses = load_pauses(connection) if paused else []
        return DueWork(jobs, schedules, limits, bulk, ActivePauses.from_records(pauses))


@cache  # it is run twice a second, and finds nothing mostly
def _due_work(dialect: str) -> TextClause:
    now = now_sql_of(dialect)
    # Literal states: only with these does the database use the partial indexes.
    return text(
        "SELECT "
        "EXISTS (SELECT 1 FROM jobs WHERE state = 'scheduled' AND run_at <= :now) "
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
        f"{free_bulk_condition(dialect)}, "
        f"EXISTS (SELECT 1 {pauses_in_force(dialect)})"
    )
