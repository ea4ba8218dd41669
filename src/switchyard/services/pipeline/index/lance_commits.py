"""Repeat writes to LanceDB that conflicted with another process: LanceDB commits optimistically."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from switchyard.services.common.errors import RetryableError

MAX_COMMIT_TRIES = 8
"""Attempts at a write that conflicts with others; some seconds in all."""
FIRST_RETRY_DELAY = 0.05
"""Seconds before the first retry."""
_CONFLICT_WORDS = ("conflict", "concurrent", "incompatible transaction", "too many")

Answer = TypeVar("Answer")


async def retry_on_conflict(write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run a write, and repeat it while it conflicts with others. A conflict is recognised by the
    error's text, as LanceDB has no error type for it."""
    from tenacity import (
        AsyncRetrying,
        RetryError,
        retry_if_exception,
        stop_after_attempt,
        wait_random_exponential,
    )

    tries = AsyncRetrying(
        retry=retry_if_exception(_is_conflict),
        stop=stop_after_attempt(MAX_COMMIT_TRIES),
        wait=wait_random_exponential(multiplier=FIRST_RETRY_DELAY, max=2),
    )

    async def attempt() -> Answer:
        return await write()  # tenacity awaits nothing but coroutine functions

    try:
        return await tries(attempt)
    except RetryError as error:
        last_error = error.last_attempt.exception()
        raise RetryableError(
            f"other writers won {MAX_COMMIT_TRIES} times: {last_error}"[:500]
        ) from last_error


def _is_conflict(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _CONFLICT_WORDS)
