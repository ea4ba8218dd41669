"""Whether the ledger's disk has room, where its server alone can tell."""

from __future__ import annotations

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql.base import Repository
from switchyard.services.engine.records.errors import LedgerFull, LedgerUnavailable

ROWS = 20_000
"""Of 32 characters, sorted in a file: about 1 MiB, for a moment. Nothing is left of it."""


class DiskSpaceProbe(Repository):
    """Asks a database server for room. A SQLite file lies on this host, which knows."""

    async def require_room(self) -> None:
        """Raises LedgerFull when PostgreSQL has no room for a temporary file where the ledger's
        tables are; LedgerUnavailable when it is away."""
        if self._database.dialect == "sqlite":
            return

        def work(connection: Connection) -> None:
            connection.execute(text("SET LOCAL work_mem = '64kB'"))
            connection.execute(
                text(
                    f"SELECT md5(n::text) FROM generate_series(1, {ROWS}) AS n "
                    f"ORDER BY 1 OFFSET {ROWS - 1}"
                )
            )

        try:
            await self._database.read(work)
        except LedgerFull:
            raise
        except LedgerUnavailable as error:
            if "temp_file_limit" not in str(error):
                raise
