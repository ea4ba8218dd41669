"""Wait for conditions that send no signal."""

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

INTERVAL = 0.03
MAX_WAIT = 60.0
"""Seconds to wait for a condition that must become true: only a failing test waits so long."""


async def eventually(
    predicate: Callable[[], Any],
    timeout: float = MAX_WAIT,
    what: str = "",
    *,
    progress: Callable[[], Any] | None = None,
) -> Any:
    """Wait for a true value of `predicate`, plain or async, which is called every 30 ms, and return
    it.

    With `progress`, plain or async, the time starts again whenever its value changes: for work
    that takes long on a busy machine, and only has to go on.

    Raises AssertionError with the last value after `timeout` seconds.
    """
    deadline, last_progress = time.monotonic() + timeout, None
    while True:
        value = await _call(predicate)
        if value:
            return value
        if progress is not None and (current_progress := await _call(progress)) != last_progress:
            deadline, last_progress = time.monotonic() + timeout, current_progress
        elif time.monotonic() > deadline:
            if progress is not None:
                what = f"{what or 'it'} (stands still at {last_progress!r})"
            raise AssertionError(f"{what or 'it'} did not happen in {timeout:g} s: {value!r}")
        await asyncio.sleep(INTERVAL)


async def _call(function: Callable[[], Any]) -> Any:
    value = function()
    return await value if isawaitable(value) else value
