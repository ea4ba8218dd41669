"""Reading ahead: a window of items, filled while others are published."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from switchyard.broker.closeable import AsyncCloseable
from switchyard.broker.task_supervisor import end_tasks

T = TypeVar("T")


class ReadAhead(AsyncCloseable, Generic[T]):
    """An iterator's items, at most `window` of them read ahead. Use with `async with`."""

    def __init__(self, items: AsyncIterator[T], window: int) -> None:
        self._items = items
        self._window = window
        self._waiting: deque[T] = deque()
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is read ahead: the next `take` waits, or returns none at the end."""
        return not self._waiting

    async def take(self, most: int) -> list[T]:
        """Return the next items, at least one; none at the end. Raises what the iterator raised,
        once everything before that was taken."""
        assert self._task is not None
        while not self._waiting:
            if self._task.done():
                self._task.result()
                return []
            self._more.clear()
            await self._more.wait()
        items = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._room.set()
        return items

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="read ahead")
        self._task.add_done_callback(lambda _: self._more.set())
        return self

    async def close(self) -> None:
        assert self._task is not None
        await end_tasks(self._task)
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    async def _read(self) -> None:
        async for item in self._items:
            while len(self._waiting) >= self._window:
                self._room.clear()
                await self._room.wait()
            self._waiting.append(item)
            self._more.set()
            if not len(self._waiting) % 100:
                await asyncio.sleep(0)  # a source that never waits must not keep others waiting
