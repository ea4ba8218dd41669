"""How soon an API answers; a broker's alarm; and the scheduler that publishes pending jobs."""

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
MAX_MEDIAN = 2.0
"""Seconds that half of the answers may take, as promised, also on a busy machine."""
MAX_SECONDS = 10.0
"""Seconds that any answer may take, however busy the machine; one that hangs takes thirty."""


async def timed_publish(api: RunningApi) -> tuple[httpx.Response, float]:
    """Publish a job; return the answer, and after how many seconds it came."""
    began = time.monotonic()
    answer = await api.client.post("/jobs", json=NOOP)
    return answer, time.monotonic() - began


def assert_prompt(times: list[float]) -> None:
    """Assert that answers came soon; `times` are in seconds."""
    assert statistics.median(times) < MAX_MEDIAN
    assert max(times) < MAX_SECONDS


async def fast_scheduler(system: System, pending: float = 0.5) -> Scheduler:
    """Return a scheduler that publishes jobs after they were `pending` for so many seconds."""
    return Scheduler(
        system.settings,
        system.registry,
        system.ledger,
        intervals=SchedulerIntervals(turn=0.1, pending=pending),
    )


@asynccontextmanager
async def alarm(node: LocalNode) -> AsyncIterator[None]:
    """Raise a memory alarm on the node, until the context ends."""
    watermark = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    await watermark("0.0000001")
    try:
        yield
    finally:
        await watermark("0.4")
