"""Parts of one job's work, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_bounded(parts: Iterable[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """Return what all parts give, in their order; each is taken from `parts` when its turn comes.

    After an error no more begin, and those under way come to their end before it is raised: what
    they have paid for or worked out is kept, and the next attempt finds it.
    """
    left = enumerate(parts)
    given: dict[int, T] = {}
    failed = False

    async def work() -> None:
        nonlocal failed
        for place, part in left:
            try:
                given[place] = await part
            except BaseException:
                failed = True
                raise
            if failed:
                return

    for ended in await asyncio.gather(*(work() for _ in range(at_once)), return_exceptions=True):
        if isinstance(ended, BaseException):
            # Not a group of errors: it would say nothing to who decides whether to try again.
            raise ended
    return [given[place] for place in sorted(given)]
