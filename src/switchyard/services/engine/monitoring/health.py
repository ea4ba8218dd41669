"""Check whether the components that the system depends on answer: broker, ledger, storage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import structlog

from switchyard.broker.errors import Blocked
from switchyard.services.common.files.errors import DiskFull
from switchyard.services.engine.records.errors import LedgerFull

CHECK_TIMEOUT = 2.0
"""Seconds after which a component that has not answered counts as away."""

Probe = Callable[[], Awaitable[object]]


ComponentState = Literal["ok", "away", "full", "blocked"]
"""`full`: its disk has no room; `blocked`: the broker has a memory or disk alarm, and takes no
messages. Neither can take work, like one that is away."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component that the system depends on, and its state."""

    name: str
    state: ComponentState
    latency: float
    """Seconds until it answered, or until the probe failed or timed out."""


async def run_probes(probes: Mapping[str, Probe]) -> list[Component]:
    """Run all probes concurrently. Their errors are only logged, as they may name hosts."""
    return list(await asyncio.gather(*(_run_probe(name, probe) for name, probe in probes.items())))


async def _run_probe(name: str, probe: Probe) -> Component:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await probe()
    except Exception as error:  # whatever it is, the component can't be used
        structlog.get_logger("health").warning(
            "service unreachable", component=name, error=str(error) or type(error).__name__
        )
        return Component(name, _state_of(error), time.monotonic() - began)
    return Component(name, "ok", time.monotonic() - began)


def _state_of(error: Exception) -> ComponentState:
    if isinstance(error, DiskFull | LedgerFull):
        return "full"
    return "blocked" if isinstance(error, Blocked) else "away"
