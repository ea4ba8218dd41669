"""Whether what the system stands on is there: broker, ledger, storage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

CHECK_TIMEOUT = 2.0
"""Seconds after which what did not answer counts as away."""

Check = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that the system stands on."""

    name: str
    is_ok: bool
    latency: float
    """Seconds until it answered, or until that was given up."""


async def examine(checks: Mapping[str, Check]) -> list[Component]:
    """Check everything at once. What a check raises goes into the log: it may name hosts."""
    return list(await asyncio.gather(*(_examine(name, check) for name, check in checks.items())))


async def _examine(name: str, check: Check) -> Component:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await check()
    except Exception as error:  # whatever it is, the component can't be used
        structlog.get_logger("health").warning(
            "away", component=name, error=str(error) or type(error).__name__
        )
        return Component(name, False, time.monotonic() - began)
    return Component(name, True, time.monotonic() - began)
