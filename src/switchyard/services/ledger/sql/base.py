"""What all parts of the ledger share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchyard.services.ledger.sql.committer import GroupCommitter
from switchyard.services.ledger.sql.database import Database
from switchyard.services.ledger.sql.operations import JobChange
from switchyard.services.ledger.sql.transaction import JobWriter


class LedgerBase:
    """A database, and the group committer that writes jobs into it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.clock = database.clock
        """The time by which jobs grow old and due, on whichever host they are looked at."""
        self._writer = JobWriter(database.dialect)
        self._committer = GroupCommitter(self._commit)

    async def _commit(self, operations: Sequence[JobChange[Any]]) -> Sequence[Any]:
        return await self._database.write(
            lambda connection: self._writer.run(connection, operations)
        )
