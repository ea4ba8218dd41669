"""Waiting for what sends no signal."""

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

INTERVAL = 0.03
PATIENCE = 60.0
"""Seconds for what must happen: only a test that fails waits so long, however busy the machine."""


async def eventually(
    predicate: Callable[[], Any], timeout: float = PATIENCE, what: str = ""
) -> Any:
    """The first true value of `predicate`, plain or async, asked every 30 ms.

    Raises AssertionError with the last value after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        value = await answer if isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or 'it'} did not happen in {timeout:g} s: {value!r}")
        await asyncio.sleep(INTERVAL)
