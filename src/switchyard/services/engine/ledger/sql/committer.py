"""Group commit: operations that are submitted while a transaction runs are committed by the next
one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from switchyard.broker.forking import OwnerProcess
from switchyard.services.engine.ledger.sql.job_operations import JobOperation
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerError,
    LedgerForked,
    LedgerUnavailable,
    SchemaOutdated,
)

ResultT = TypeVar("ResultT")

MAX_BATCH = 500
"""Operations in one transaction, at most: a faulty one must not delay the others for long."""
MAX_DELAY = 0.02
"""Seconds for which an operation of `submit_soon` waits for others to be committed with."""


@dataclass(frozen=True, slots=True)
class NonJobWrite(Generic[ResultT]):
    """An operation that changes other rows than jobs."""

    run: Callable[[Connection], ResultT]
    """Called in the transaction; perhaps again, in another one."""


Operation = JobOperation[ResultT] | NonJobWrite[ResultT]
Commit = Callable[[Sequence[Operation[Any]]], Awaitable[Sequence[Any]]]
"""Runs operations in one transaction; returns the result or the LedgerError of each."""

_PendingOperation = tuple[Operation[Any], asyncio.Future[Any]]


class GroupCommitter:
    """Collects operations of many coroutines, and commits them together. An operation that a caller
    waits for is committed at once if no transaction is running."""

    def __init__(self, commit: Commit, max_batch: int = MAX_BATCH) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._pending: deque[_PendingOperation] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Set while only operations of `submit_soon` are pending."""
        self._closed = False
        self._owner = OwnerProcess()

    async def submit(self, operation: Operation[ResultT]) -> ResultT:
        """Run the operation in the next transaction, and return its result once it is committed.

        Raises LedgerUnavailable when the transaction failed, or the operation's own error. If the
        caller is cancelled, its operation may still be committed.
        """
        return await self._enqueue(operation)

    async def submit_many(
        self, operations: Sequence[Operation[ResultT]]
    ) -> list[ResultT | BaseException]:
        """Return the results in order; an operation's own error stands in its place."""
        futures = [self._enqueue(operation) for operation in operations]
        return await asyncio.gather(*futures, return_exceptions=True)

    def submit_soon(self, operation: Operation[ResultT]) -> asyncio.Future[ResultT]:
        """Run the operation in the next transaction, with what is submitted meanwhile, and in
        MAX_DELAY seconds at the latest. The future has its result, or the error that `submit`
        would raise."""
        loop = asyncio.get_running_loop()
        try:
            future = self._append(operation)
        except LedgerError as error:
            future = loop.create_future()
            future.set_exception(error)
            return future
        if self._task is None and self._timer is None:
            self._timer = loop.call_later(MAX_DELAY, self._start)
        return future

    async def close(self) -> None:
        """Commit waiting operations, then refuse further ones."""
        self._closed = True
        if not self._owner.is_current:
            return  # after a fork, the pending operations are the parent's
        if self._pending:
            self._start()
        if self._task is not None:
            await asyncio.shield(self._task)

    def _enqueue(self, operation: Operation[ResultT]) -> asyncio.Future[ResultT]:
        future = self._append(operation)
        self._start()
        return future

    def _append(self, operation: Operation[ResultT]) -> asyncio.Future[ResultT]:
        if not self._owner.is_current:
            raise LedgerForked
        if self._closed:
            raise LedgerClosed("the ledger is closed")
        future: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self._pending.append((operation, future))
        return future

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="ledger-group-commit")

    async def _drain(self) -> None:
        try:
            while self._pending:
                size = min(len(self._pending), self._max_batch)
                batch = [self._pending.popleft() for _ in range(size)]
                try:
                    await self._commit_batch(batch)
                except BaseException as error:  # else their callers would wait for ever
                    _fail_batch(batch, error)
                    raise
        finally:
            self._task = None

    async def _commit_batch(self, batch: Sequence[_PendingOperation]) -> None:
        results = await self._run_each([operation for operation, _ in batch])
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # its caller was cancelled
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _run_each(self, operations: Sequence[Operation[Any]]) -> Sequence[Any]:
        """Run operations in one transaction; if that fails, each in its own, so that one bad
        operation does not fail the others. Returns errors instead of raising them."""
        try:
            return await self._commit(operations)
        except (LedgerUnavailable, SchemaOutdated) as error:
            return [_copy_error(error) for _ in operations]
        except Exception as error:
            if len(operations) == 1:
                return [error]
        results: list[Any] = []
        for operation in operations:
            results += await self._run_each([operation])
        return results


def _fail_batch(batch: Sequence[_PendingOperation], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(
                LedgerUnavailable(f"not known whether the change was committed: {error!r}")
            )


def _copy_error(error: LedgerError) -> LedgerError:
    """Copy an exception for one caller: raised in several places, one exception would collect all
    their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
