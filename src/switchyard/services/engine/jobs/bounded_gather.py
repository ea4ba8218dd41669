"""Do parts of one job's work at the same time, at most so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_bounded(parts: Iterable[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """Run the parts, at most `at_once` at a time, and return their results in order. After an error
    no more begin, and those under way end before it is raised: their results may be paid for, and
    the next attempt finds them.

    After an error no more begin, and those under way come to their end before it is raised: what
    they have paid for or worked out is kept, and the next attempt finds it.
    """
    left = enumerate(parts)
    answers: dict[int, T] = {}
    failed = False

    async def work() -> None:
        nonlocal failed
        for place, part in left:
            try:
                answers[place] = await part
            except BaseException:
                failed = True
                raise
            if failed:
                return

    for result in await asyncio.gather(*(work() for _ in range(at_once)), return_exceptions=True):
        if isinstance(result, BaseException):
            # Not a group of errors: it would say nothing to who decides whether to try again.
            raise result
    return [answers[place] for place in sorted(answers)]
