"""What all parts of the ledger share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchyard.services.engine.ledger.sql.committer import GroupCommitter
from switchyard.services.engine.ledger.sql.database import Database
from switchyard.services.engine.ledger.sql.limiting import RoomBatch
from switchyard.services.engine.ledger.sql.operations import JobChange
from switchyard.services.engine.ledger.sql.transaction import JobWriter
from switchyard.services.engine.records.limits import RoomAnswer


class LedgerBase:
    """A database, and the group committer that writes jobs into it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.clock = database.clock
        """The time by which jobs grow old and due, on whichever host they are looked at."""
        self._writer = JobWriter(database.dialect)
        self._committer = GroupCommitter(self._commit)
        self._rooms = GroupCommitter(self._commit_rooms)
        """Apart from the jobs: those without limits do not wait for those that have some."""

    async def _commit(self, operations: Sequence[JobChange[Any]]) -> Sequence[Any]:
        return await self._database.write(
            lambda connection: self._writer.run(connection, operations)
        )

    async def _commit_rooms(self, changes: Sequence[Any]) -> Sequence[RoomAnswer]:
        return await self._database.write(lambda connection: RoomBatch(connection, changes).run())
