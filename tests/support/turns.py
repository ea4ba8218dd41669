"""How often an event loop runs others while some work goes on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def turns_during(work: Awaitable[T]) -> tuple[T, int]:
    """Return the result of the work, and how often another task ran meanwhile."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    try:
        return await work, turns
    finally:
        counting.cancel()
