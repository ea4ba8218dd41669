"""Group commit: operations that are submitted while a transaction runs are committed by the next
one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from switchyard.broker.forking import Owner
from switchyard.services.engine.ledger.sql.job_operations import JobChange
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerError,
    LedgerForked,
    LedgerUnavailable,
    SchemaOutdated,
)

Answer = TypeVar("Answer")

MAX_BATCH = 500
"""Operations in one transaction, at most: a faulty one must not delay the others for long."""

Commit = Callable[[Sequence[JobChange[Any]]], Awaitable[Sequence[Any]]]
"""Runs operations in one transaction; answers each with its result or its LedgerError."""

_PendingOperation = tuple[JobChange[Any], asyncio.Future[Any]]


class GroupCommitter:
    """Collects operations of many coroutines. No timers: an idle ledger commits at once."""

    def __init__(self, commit: Commit, max_batch: int = MAX_BATCH) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._waiting: deque[_PendingOperation] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._owner = Owner()

    async def submit(self, operation: JobChange[Answer]) -> Answer:
        """Run the operation in the next transaction, and return its result once it is committed.

        Raises LedgerUnavailable when the transaction failed, or the operation's own error. A
        caller that is cancelled takes nothing back: its operation may still be committed.
        """
        return await self._enqueue(operation)

    async def submit_many(
        self, operations: Sequence[JobChange[Answer]]
    ) -> list[Answer | BaseException]:
        """Return the results in order; an operation's own error stands in its place."""
        futures = [self._enqueue(operation) for operation in operations]
        return await asyncio.gather(*futures, return_exceptions=True)

    async def close(self) -> None:
        """Commit waiting operations, then refuse further ones."""
        self._closed = True
        if not self._owner.is_here:
            return  # what waits is the parent's
        if self._task is not None:
            await asyncio.shield(self._task)

    def _enqueue(self, operation: JobChange[Answer]) -> asyncio.Future[Answer]:
        if not self._owner.is_here:
            raise LedgerForked
        if self._closed:
            raise LedgerClosed("the ledger is closed")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="ledger-group-commit")
        return future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                size = min(len(self._waiting), self._max_batch)
                batch = [self._waiting.popleft() for _ in range(size)]
                try:
                    await self._commit_batch(batch)
                except BaseException as error:  # else their callers would wait for ever
                    _fail_batch(batch, error)
                    raise
        finally:
            self._task = None

    async def _commit_batch(self, batch: Sequence[_PendingOperation]) -> None:
        answers = await self._run_each([operation for operation, _ in batch])
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():  # its caller was cancelled
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def _run_each(self, operations: Sequence[JobChange[Any]]) -> Sequence[Any]:
        """Run operations in one transaction; if that fails, each in its own, so that one bad
        operation does not fail the others. Returns errors instead of raising them."""
        try:
            return await self._commit(operations)
        except (LedgerUnavailable, SchemaOutdated) as error:
            return [_copy_error(error) for _ in operations]
        except Exception as error:
            if len(operations) == 1:
                return [error]
        answers: list[Any] = []
        for operation in operations:
            answers += await self._run_each([operation])
        return answers


def _fail_batch(batch: Sequence[_PendingOperation], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(LedgerUnavailable(f"not known whether it was done: {error!r}"))


def _copy_error(error: LedgerError) -> LedgerError:
    """Copy an exception for one caller: one that is raised in many places grows a traceback."""
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
