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
MAX_DELAY = 0.02
"""Seconds for which an operation that nobody waits for is kept for the next transaction."""


@dataclass(frozen=True, slots=True)
class OtherWrite(Generic[Answer]):
    """An operation that changes other rows than jobs."""

    run: Callable[[Connection], Answer]
    """Called in the transaction; perhaps again, in another one."""


Operation = JobChange[Answer] | OtherWrite[Answer]
Commit = Callable[[Sequence[Operation[Any]]], Awaitable[Sequence[Any]]]
"""Runs operations in one transaction; answers each with its result or its LedgerError."""

_PendingOperation = tuple[Operation[Any], asyncio.Future[Any]]


class GroupCommitter:
    """Collects operations of many coroutines. What somebody waits for is committed at once while
    the ledger is idle."""

    def __init__(self, commit: Commit, max_batch: int = MAX_BATCH) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._waiting: deque[_PendingOperation] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Runs while operations wait that nobody waits for."""
        self._closed = False
        self._owner = OwnerProcess()

    async def submit(self, operation: Operation[Answer]) -> Answer:
        """Run the operation in the next transaction, and return its result once it is committed.

        Raises LedgerUnavailable when the transaction failed, or the operation's own error. A
        caller that is cancelled takes nothing back: its operation may still be committed.
        """
        return await self._enqueue(operation)

    async def submit_many(
        self, operations: Sequence[Operation[Answer]]
    ) -> list[Answer | BaseException]:
        """Return the results in order; an operation's own error stands in its place."""
        futures = [self._enqueue(operation) for operation in operations]
        return await asyncio.gather(*futures, return_exceptions=True)

    def submit_soon(self, operation: Operation[Answer]) -> asyncio.Future[Answer]:
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
            return  # what waits is the parent's
        if self._waiting:
            self._start()
        if self._task is not None:
            await asyncio.shield(self._task)

    def _enqueue(self, operation: Operation[Answer]) -> asyncio.Future[Answer]:
        future = self._append(operation)
        self._start()
        return future

    def _append(self, operation: Operation[Answer]) -> asyncio.Future[Answer]:
        if not self._owner.is_current:
            raise LedgerForked
        if self._closed:
            raise LedgerClosed("the ledger is closed")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        return future

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="ledger-group-commit")

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
