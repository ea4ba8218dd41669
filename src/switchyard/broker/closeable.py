"""What is closed at the end of an `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class AsyncCloseable(ABC):
    """Something with a `close` of its own, as a context."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections, tasks and whatever else it has."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
