"""Connect to whichever of several servers accepts first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

ATTEMPT_DELAY = 0.3
"""Seconds until the next server is tried beside one that has not answered."""


class AllAttemptsFailed(Exception):
    """Every attempt has failed, each with one of these errors."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, errors)))


async def connect_first(
    attempts: Sequence[Callable[[], Coroutine[Any, Any, T]]],
    *,
    head_start: float,
    failures: type[E] | tuple[type[E], ...],
    close: Callable[[T], Awaitable[None]],
) -> T:
    """Return the result of the first attempt that succeeds. Each has a head start of `head_start`
    seconds before the next, which begins at once when one fails.

    A later success is closed, and no attempt outlives the call. Raises AllAttemptsFailed where all
    attempts raise `failures`; any other error as it is.
    """
    waiting = list(attempts)
    running: list[asyncio.Task[T]] = []
    failed: list[Exception] = []
    try:
        while running or waiting:
            if waiting:
                running.append(asyncio.create_task(waiting.pop(0)()))
            await asyncio.wait(
                running,
                timeout=head_start if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for each in [each for each in running if each.done()]:
                running.remove(each)
                try:
                    return each.result()
                except failures as error:
                    failed.append(error)
    finally:
        for each in running:
            each.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(result, BaseException):
                await close(result)
    raise AllAttemptsFailed(failed)
