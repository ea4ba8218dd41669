"""Measure the sizes of the ledger's tables, and since when they have rows."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Table, exc, func, select, text

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger.sql.dialect import is_sqlite
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.ledger.sql.tables import (
    bulk_operations,
    dead_letters,
    jobs,
    metadata,
)
from switchyard.services.engine.records.usage import LedgerUsage, TableUsage

MAX_READ_BYTES = 4 * 1024**3
"""Size of a SQLite file up to which the size of each table is measured, as that reads the whole
file."""
_MADE_AT = {
    "jobs": jobs.c.created_at,
    "dead_letters": dead_letters.c.dead_at,
    "bulk_operations": bulk_operations.c.created_at,
}
"""Indexed columns by which the oldest row is found, and the last day's rows are counted."""


class TableSizes(Repository):
    """Measures the ledger's tables. All methods raise LedgerUnavailable when the database is
    away."""

    @read
    def usage(self, connection: Connection) -> LedgerUsage:
        """Return the size of each table with its indexes, the largest first. The numbers of rows
        are PostgreSQL's estimates, where it has some."""
        known = [table for table in metadata.sorted_tables if _exists(connection, table)]
        if is_sqlite(connection):
            total, free, sizes = _sqlite_sizes(connection, Path(self._database.location))
        else:
            total, free, sizes = _postgres_sizes(connection, known)
        tables = []
        for table in known:
            since, last_day = _growth(connection, table, self.clock.time())
            tables.append(
                TableUsage(
                    table.name,
                    _count_rows(connection, table),
                    sizes.get(table.name),
                    since,
                    last_day,
                )
            )
        tables.sort(key=lambda each: (-(each.bytes or 0), -each.rows, each.name))
        return LedgerUsage(total, free, tuple(tables))


def _exists(connection: Connection, table: Table) -> bool:
    """Tell whether the database has the table: that of another package may be missing here."""
    if is_sqlite(connection):
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"
    else:
        query = "SELECT 1 WHERE to_regclass(:name) IS NOT NULL"
    return connection.scalar(text(query), {"name": table.name}) is not None


def _sqlite_sizes(connection: Connection, file: Path) -> tuple[int, int, dict[str, int]]:
    page = connection.scalar(text("PRAGMA page_size")) or 0
    free = (connection.scalar(text("PRAGMA freelist_count")) or 0) * page
    total = sum(
        part.stat().st_size
        for part in (file, Path(f"{file}-wal"), Path(f"{file}-shm"))
        if part.exists()
    )
    if total > MAX_READ_BYTES:
        return total, free, {}
    query = text(
        "SELECT m.tbl_name, SUM(s.pgsize) FROM dbstat AS s JOIN sqlite_master AS m "
        "ON m.name = s.name WHERE s.aggregate = TRUE GROUP BY m.tbl_name"
    )
    try:
        return total, free, {name: int(size) for name, size in connection.execute(query)}
    except exc.OperationalError:
        return total, free, {}  # this SQLite was built without dbstat


def _postgres_sizes(connection: Connection, tables: list[Table]) -> tuple[int, int, dict[str, int]]:
    query = text("SELECT pg_total_relation_size(to_regclass(:name))")
    sizes = {each.name: connection.scalar(query, {"name": each.name}) or 0 for each in tables}
    total = connection.scalar(text("SELECT pg_database_size(current_database())")) or 0
    return total, 0, sizes


def _count_rows(connection: Connection, table: Table) -> int:
    if not is_sqlite(connection):
        estimate = text("SELECT reltuples FROM pg_class WHERE oid = to_regclass(:name)")
        rows = connection.scalar(estimate, {"name": table.name})
        if rows is not None and rows > 0:
            return int(rows)
    return connection.scalar(select(func.count()).select_from(table)) or 0


def _growth(connection: Connection, table: Table, now: float) -> tuple[float | None, int | None]:
    """Return when the oldest row was made, and how many were made within a day."""
    made_at = _MADE_AT.get(table.name)
    if made_at is None:
        return None, None
    since = connection.scalar(select(func.min(made_at)))
    recent = select(func.count()).select_from(table).where(made_at >= now - DAY)
    return since, connection.scalar(recent) or 0
