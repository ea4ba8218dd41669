"""Make a call once for all who ask for it at the same time, such as a query when a cached answer
has become too old."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SharedCalls(Generic[K, T]):
    """Makes a call once for all who ask for the same key while it runs."""

    def __init__(self, call: Callable[[K], Coroutine[Any, Any, T]]) -> None:
        self._call = call
        self._running: dict[K, asyncio.Task[T]] = {}

    async def result(self, key: K) -> T:
        """Return the result for a key, or raise the error of the call. Who is cancelled meanwhile
        does not end the call for the others."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._call(key))
            task.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(task)
