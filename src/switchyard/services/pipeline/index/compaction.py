"""Compact the tables of the index: in a maintenance job, and in the background of processes that
write.

LanceDB makes a file of every write, so compacting once a night is not enough: after some hundred
documents, writing another costs several times as much as the first.
"""

from __future__ import annotations

import asyncio

import structlog

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.pipeline.index.generations import Generation, IndexStore


class BackgroundCompactor:
    """Compacts tables in the background of a process that writes to an index, one at a time."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None

    def begin(self, generation: Generation) -> None:
        """Compact a generation's table, unless one is being compacted."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compact(generation), name="index compaction")

    async def close(self) -> None:
        """Stop compacting. The next compaction repeats what this one has not finished."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _compact(self, generation: Generation) -> None:
        try:
            await compact_table(self._store, generation)
        except (RetryableError, PermanentError, OSError, RuntimeError, ValueError) as error:
            # The next write tries again, and the maintenance job reports the error to people.
            structlog.get_logger("index").warning("index not compacted", error=str(error))


async def compact_table(store: IndexStore, generation: Generation) -> None:
    """Compact a generation's table, unless another process does. Raises IndexUnavailable,
    IndexMismatch."""
    async with store.compacting(generation) as is_ours:
        if is_ours:
            async with store.table(generation) as table:
                await table.compact()
