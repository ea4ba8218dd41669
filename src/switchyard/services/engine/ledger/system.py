"""Read the system's identity from the ledger; and check the disk space of a PostgreSQL server."""

from __future__ import annotations

import time

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql.job_id_key import read_job_ids
from switchyard.services.engine.ledger.sql.repository import LedgerCore, Repository, read
from switchyard.services.engine.records.errors import LedgerFull, LedgerUnavailable
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.system import SystemRecord


class SystemRepository(Repository):
    """Reads and advances the system's identity, the one row that `upgrade` has made. All methods
    raise LedgerUnavailable when the database is away."""

    def __init__(self, core: LedgerCore) -> None:
        super().__init__(core)
        self._job_ids: JobIds | None = None

    async def job_ids(self) -> JobIds:
        """Return the generator of job ids. Its key never changes, so the database is read once."""
        if self._job_ids is None:
            self._job_ids = await self._database.read(read_job_ids)
        return self._job_ids

    @read
    def system(self, connection: Connection) -> SystemRecord:
        """Return id, name and generation of the system."""
        row = connection.execute(text("SELECT id, name, generation FROM system_id")).one()
        return SystemRecord(row.id, row.name, row.generation)

    async def advance_system(self, *, least: int = 0) -> SystemRecord:
        """Begin a new generation: the time in seconds, but at least one more than the generation
        before and than `least`. It is synced to disk: after a loss of power, the ledger must not be
        of an older generation than its broker."""

        def work(connection: Connection) -> SystemRecord:
            row = connection.execute(
                text(
                    "UPDATE system_id SET generation = CASE "
                    "WHEN generation >= :next THEN generation + 1 ELSE :next END "
                    "RETURNING id, name, generation"
                ),
                {"next": max(int(time.time()), least + 1)},
            ).one()
            return SystemRecord(row.id, row.name, row.generation)

        system = await self._database.write(work)
        await self._database.sync()
        return system


PROBE_ROWS = 20_000
"""Rows of 32 characters that are sorted in a file: about 1 MiB, deleted at once."""


class DiskSpaceProbe(Repository):
    """Checks that a PostgreSQL server has free disk space. For a SQLite file, the host's own check
    does."""

    async def require_room(self) -> None:
        """Raise LedgerFull if PostgreSQL has no room for a temporary file where the ledger's tables
        are; LedgerUnavailable if it can't be reached."""
        if self._database.dialect == "sqlite":
            return

        def work(connection: Connection) -> None:
            connection.execute(text("SET LOCAL work_mem = '64kB'"))
            connection.execute(
                text(
                    f"SELECT md5(n::text) FROM generate_series(1, {PROBE_ROWS}) AS n "
                    f"ORDER BY 1 OFFSET {PROBE_ROWS - 1}"
                )
            )

        try:
            await self._database.write(work)  # SET LOCAL holds within a transaction alone
        except LedgerFull:
            raise
        except LedgerUnavailable as error:
            if "temp_file_limit" not in str(error):
                raise
