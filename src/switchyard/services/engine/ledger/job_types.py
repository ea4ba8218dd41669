"""Store job types as workers know them, for processes that lack their modules."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import job_types
from switchyard.services.engine.records.job_types import MAX_JOB_TYPES, TYPE_TTL, JobTypeRecord

TYPES_VERSION = (
    "SELECT CAST(COUNT(*) AS TEXT) || ' ' || CAST(COALESCE(MAX(registered_at), 0) AS TEXT) "
    "FROM job_types"
)
"""SQL query for a text that changes whenever job types are registered."""


class JobTypeRepository(Repository):
    """Stores registered job types, at most MAX_JOB_TYPES. All methods raise LedgerUnavailable when
    the database is away."""

    @write
    def register(
        self,
        connection: Connection,
        types: Sequence[JobTypeRecord],
        now: float,
        *,
        replace: bool = True,
    ) -> None:
        """Register job types, replacing those of the same names; without `replace`, only register
        types that are not registered yet. Types that no process has reported for TYPE_TTL are
        removed. `now` is the ledger's time."""
        connection.execute(delete(job_types).where(job_types.c.seen_at < now - TYPE_TTL))
        known = set(connection.scalars(select(job_types.c.name)))
        new_types = [each for each in types if replace or each.name not in known]
        if new_types:
            names = [each.name for each in new_types]
            connection.execute(delete(job_types).where(job_types.c.name.in_(names)))
            connection.execute(insert(job_types), [_row(each, now) for each in new_types])
        newest = (
            select(job_types.c.name)
            .order_by(job_types.c.seen_at.desc(), job_types.c.name)
            .limit(MAX_JOB_TYPES)
        )
        remaining = set(connection.scalars(newest))
        if surplus := {*known, *(each.name for each in new_types)} - remaining:
            connection.execute(delete(job_types).where(job_types.c.name.in_(surplus)))

    @write
    def touch(self, connection: Connection, names: Collection[str], now: float) -> bool:
        """Record that a process knows these types. False where one is not registered any more."""
        is_named = job_types.c.name.in_(names)
        touched = connection.execute(update(job_types).where(is_named).values(seen_at=now))
        return touched.rowcount == len(set(names))

    @read
    def digests(self, connection: Connection) -> dict[str, str]:
        """Return each type's digest, by its name."""
        query = select(job_types.c.name, job_types.c.digest).limit(MAX_JOB_TYPES)
        return {row[0]: row[1] for row in connection.execute(query)}

    @read
    def list_job_types(
        self, connection: Connection, names: Collection[str] | None = None
    ) -> list[JobTypeRecord]:
        """List registered types by name, those of `names` or all. Rows that can't be read are left
        out, and logged."""
        query = select(job_types).order_by(job_types.c.name).limit(MAX_JOB_TYPES)
        if names is not None:
            query = query.where(job_types.c.name.in_(names))
        records = (_record(row) for row in connection.execute(query).mappings())
        return [each for each in records if each is not None]


_AS_JSON = {"lanes": list, "payload_schema": dict, "local_keys": dict}


def _row(record: JobTypeRecord, now: float) -> dict[str, Any]:
    row = {column.name: getattr(record, column.name) for column in job_types.columns}
    return {
        **row,
        **{name: json.dumps(row[name]) for name in _AS_JSON},
        "registered_at": now,
        "seen_at": now,
    }


def _record(row: RowMapping) -> JobTypeRecord | None:
    """Return the row's type; None for a row that this program can't have written."""
    parts: dict[str, Any] = {}
    for name, expected in _AS_JSON.items():
        try:
            parts[name] = json.loads(row[name])
        except (ValueError, RecursionError):
            parts[name] = None
        if not isinstance(parts[name], expected):
            log = structlog.get_logger("ledger")
            log.warning("job type unreadable", job_type=row["name"], column=name)
            return None
    return JobTypeRecord(**{**row, **parts, "lanes": tuple(map(str, parts["lanes"]))})
