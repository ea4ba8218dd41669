"""A base class for objects that are closed at the end of an `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncCloseable(ABC):
    """An async context manager that calls `close` at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections, end tasks, release whatever else is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
