"""The base of all repositories of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from sqlalchemy import Connection

from switchyard.services.engine.ledger.sql.clock import Clock
from switchyard.services.engine.ledger.sql.committer import (
    GroupCommitter,
    NonJobWrite,
    Operation,
)
from switchyard.services.engine.ledger.sql.database import Database
from switchyard.services.engine.ledger.sql.job_writer import JobWriter, can_skip_loading
from switchyard.services.engine.ledger.sql.permit_batch import PermitBatch
from switchyard.services.engine.records.errors import LedgerError
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
        """Commit pending operations, then close the connections."""
        await self.committer.close()
        await self.permit_committer.close()
        await self.database.close()

    async def _commit(self, operations: Sequence[Operation[Any]]) -> Sequence[Any]:
        other_writes = [each for each in operations if isinstance(each, NonJobWrite)]
        job_operations = [each for each in operations if not isinstance(each, NonJobWrite)]
        if not other_writes and can_skip_loading(job_operations):
            results = await self.database.write_each(
                lambda connection: self.writer.run_without_loading(connection, job_operations)
            )
            if results is not None:  # else a job is known already or paused: its row is needed
                return results

        def run(connection: Connection) -> list[Any]:
            # The other writes first: a transaction that locks a model server's row and jobs, such
            # as the end of a server's pause, locks them in this order.
            other_results = iter([each.run(connection) for each in other_writes])
            results = iter(self.writer.run(connection, job_operations) if job_operations else ())
            return [
                next(other_results if isinstance(each, NonJobWrite) else results)
                for each in operations
            ]

        results = await self.database.write(run)
        if any(isinstance(each, HeldByPause) for each in results):
            # Its delivery is acknowledged next: then only the ledger has the job.
            await self.database.sync()
        return results

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
    """Mark a method that only reads: it gets a connection. On PostgreSQL, each of its statements
    sees what was committed before it; see `Database.read`."""

    @wraps(method)
    async def run(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(
            lambda connection: method(self, connection, *args, **kwargs)
        )

    return run


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


def write_soon(
    failure: str,
) -> Callable[
    [Callable[Concatenate[R, Connection, P], T]], Callable[Concatenate[R, P], asyncio.Future[T]]
]:
    """Mark a method that writes, and whose caller does not wait: it runs in the transaction of the
    next change of a job, or in one of its own a few milliseconds later; perhaps again after a
    conflict. It returns a future of its result; an error is logged as the event `failure`."""

    def decorate(
        method: Callable[Concatenate[R, Connection, P], T],
    ) -> Callable[Concatenate[R, P], asyncio.Future[T]]:
        @wraps(method)
        def submit(self: R, /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
            operation = NonJobWrite(lambda connection: method(self, connection, *args, **kwargs))
            written = self._committer.submit_soon(operation)
            written.add_done_callback(partial(_log_failure, failure))
            return written

        return submit

    return decorate


def _log_failure(event: str, written: asyncio.Future[Any]) -> None:
    error = None if written.cancelled() else written.exception()
    log = structlog.get_logger("ledger")
    if isinstance(error, LedgerError):
        log.warning(event, error=str(error))
    elif error is not None:
        log.error(event, exc_info=error)
