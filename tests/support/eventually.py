"""Waiting for what sends no signal."""

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

INTERVAL = 0.03
MAX_WAIT = 60.0
"""Seconds for what must happen: only a test that fails waits so long, however busy the machine."""


async def eventually(
    predicate: Callable[[], Any],
    timeout: float = MAX_WAIT,
    what: str = "",
    *,
    progress: Callable[[], Any] | None = None,
) -> Any:
    """Wait for a true value of `predicate`, plain or async, which is called every 30 ms, and return
    it.

    With `progress`, plain or async, the time begins anew whenever that answers something else: for
    what takes longer on a busy machine, and must only go on.

    Raises AssertionError with the last value after `timeout` seconds.
    """
    deadline, at = time.monotonic() + timeout, None
    while True:
        value = await _answer(predicate)
        if value:
            return value
        if progress is not None and (now_at := await _answer(progress)) != at:
            deadline, at = time.monotonic() + timeout, now_at
        elif time.monotonic() > deadline:
            if progress is not None:
                what = f"{what or 'it'} (stands still at {at!r})"
            raise AssertionError(f"{what or 'it'} did not happen in {timeout:g} s: {value!r}")
        await asyncio.sleep(INTERVAL)


async def _answer(question: Callable[[], Any]) -> Any:
    answer = question()
    return await answer if isawaitable(answer) else answer
