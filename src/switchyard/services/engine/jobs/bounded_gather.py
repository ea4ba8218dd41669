"""Run parts of one job's work concurrently, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_bounded(parts: Iterable[Coroutine[Any, Any, T]], *, at_once: int) -> list[T]:
    """Run the parts, at most `at_once` at a time, and return their results in order. After an error
    no more begin, and those under way end before it is raised: their results may be paid for, and
    the next attempt finds them."""
    remaining = enumerate(parts)
    results: dict[int, T] = {}
    failed = False

    async def run_parts() -> None:
        nonlocal failed
        for index, part in remaining:
            try:
                results[index] = await part
            except BaseException:
                failed = True
                raise
            if failed:
                return

    for result in await asyncio.gather(
        *(run_parts() for _ in range(at_once)), return_exceptions=True
    ):
        if isinstance(result, BaseException):
            # Not an ExceptionGroup, from which `retry.decide` could not tell whether to retry.
            raise result
    return [results[index] for index in sorted(results)]
