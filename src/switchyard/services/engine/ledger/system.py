"""Which system this ledger is."""

from __future__ import annotations

import time

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql.base import Repository, read
from switchyard.services.engine.records.system import SystemRecord


class SystemRepository(Repository):
    """The one row that `upgrade` has made. All raise LedgerUnavailable when the database is
    away."""

    @read
    def system(self, connection: Connection) -> SystemRecord:
        """Id, name and generation."""
        row = connection.execute(text("SELECT id, name, generation FROM system_id")).one()
        return SystemRecord(row.id, row.name, row.generation)

    async def advance_system(self, *, least: int = 0) -> SystemRecord:
        """Begin a new generation: the time, but later than the one before and than `least`. It
        outlives the loss of power, after which the ledger would else be older than its broker."""

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
