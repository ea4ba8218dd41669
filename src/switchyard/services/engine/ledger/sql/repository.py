"""The base of all repositories of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from switchyard.services.engine.ledger.sql.clock import Clock
from switchyard.services.engine.ledger.sql.committer import GroupCommitter
from switchyard.services.engine.ledger.sql.database import Database
from switchyard.services.engine.ledger.sql.job_operations import JobChange
from switchyard.services.engine.ledger.sql.job_writer import JobWriter, need_no_rows
from switchyard.services.engine.ledger.sql.permit_batch import PermitBatch
from switchyard.services.engine.records.limits import PermitAnswer
from switchyard.services.engine.records.results import HeldByPause

P = ParamSpec("P")
T = TypeVar("T")


class LedgerCore:
    """One database, and the group committers that write into it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = database.clock
        """The time by which jobs expire and become due, the same on all hosts."""
        self.committer = GroupCommitter(self._commit)
        self.permit_committer = GroupCommitter(self._commit_permits)
        """Separate from `committer`, so that jobs without limits do not wait for those with
        limits."""
        self.writer = JobWriter(database.dialect)

    async def close(self) -> None:
        """Commit what waits, then close the connections."""
        await self.committer.close()
        await self.permit_committer.close()
        await self.database.close()

    async def _commit(self, operations: Sequence[JobChange[Any]]) -> Sequence[Any]:
        if need_no_rows(operations):
            results = await self.database.write_each(
                lambda connection: self.writer.run_unloaded(connection, operations)
            )
            if results is not None:
                return results
        answers = await self.database.write(
            lambda connection: self.writer.run(connection, operations)
        )
        if any(isinstance(answer, HeldByPause) for answer in answers):
            await (
                self.database.sync()
            )  # its delivery is acknowledged next: then only the ledger has the job
        return answers

    async def _commit_permits(self, changes: Sequence[Any]) -> Sequence[PermitAnswer]:
        return await self.database.write(lambda connection: PermitBatch(connection, changes).run())


class Repository:
    """Base of the repositories: one subject's rows, in the database of a ledger."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    @property
    def clock(self) -> Clock:
        """The ledger's clock."""
        return self._core.clock

    @property
    def _database(self) -> Database:
        return self._core.database

    @property
    def _writer(self) -> JobWriter:
        return self._core.writer

    @property
    def _committer(self) -> GroupCommitter:
        return self._core.committer

    @property
    def _permit_committer(self) -> GroupCommitter:
        return self._core.permit_committer


R = TypeVar("R", bound=Repository)


def read(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """Mark a method that only reads: it runs in a transaction, whose connection it gets."""

    @wraps(method)
    async def in_transaction(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(
            lambda connection: method(self, connection, *args, **kwargs)
        )

    return in_transaction


def write(
    method: Callable[Concatenate[R, Connection, P], T],
) -> Callable[Concatenate[R, P], Coroutine[Any, Any, T]]:
    """Mark a method that writes: it runs in a transaction, whose connection it gets, and again
    after a conflict with another process."""

    @wraps(method)
    async def in_transaction(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.write(
            lambda connection: method(self, connection, *args, **kwargs)
        )

    return in_transaction
