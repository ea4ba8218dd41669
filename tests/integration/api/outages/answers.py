"""How soon an API answers, and what outages are healed by."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx

from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.api_server import RunningApi
from tests.support.system import System

NOOP = {"routing_key": "hot.noop"}
WITHIN = 2.0
"""Seconds, as promised: what at least every second answer takes on a machine with other work."""
AT_MOST = 10.0
"""Seconds that no answer takes, however busy the machine: what hangs takes thirty."""


async def timed_publish(api: RunningApi) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    answer = await api.client.post("/jobs", json=NOOP)
    return answer, time.monotonic() - began


def assert_prompt(times: list[float]) -> None:
    """That answers come soon, in seconds."""
    assert statistics.median(times) < WITHIN
    assert max(times) < AT_MOST


async def heal(system: System, pending: float = 0.5) -> Scheduler:
    """A scheduler that steps in soon."""
    return Scheduler(
        system.settings,
        system.registry,
        system.ledger,
        intervals=SchedulerIntervals(turn=0.1, pending=pending),
    )


@asynccontextmanager
async def alarm(node: LocalNode) -> AsyncIterator[None]:
    """A memory alarm, for as long as that."""
    watermark = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    await watermark("0.0000001")
    try:
        yield
    finally:
        await watermark("0.4")
