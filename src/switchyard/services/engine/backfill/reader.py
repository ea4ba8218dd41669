"""Read items ahead, while earlier ones are published."""

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
        self._has_items = asyncio.Event()
        self._has_space = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is read ahead: the next `take` waits, or returns none at the end."""
        return not self._waiting

    async def take(self, count: int) -> list[T]:
        """Return the next items, at least one and at most `count`; none at the end. Raises the
        iterator's error once all items before it were taken."""
        assert self._task is not None
        while not self._waiting:
            if self._task.done():
                self._task.result()
                return []
            self._has_items.clear()
            await self._has_items.wait()
        items = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self._has_space.set()
        return items

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="read ahead")
        self._task.add_done_callback(lambda _: self._has_items.set())
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
                self._has_space.clear()
                await self._has_space.wait()
            self._waiting.append(item)
            self._has_items.set()
            if not len(self._waiting) % 100:
                await asyncio.sleep(0)  # a source that never awaits must not block other tasks
