"""Calls of models that take longer than the broker leaves a delivery to its worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard import LLMQueue
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.llm.llm_queue import LlmStatus
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.site import slow
from tests.support.system import open_system

MODULES = (
    "switchyard.services.pipeline.workers.summaries",
    "switchyard.services.llm.job_types",
)
LONG, SHORT = ({"messages": [{"role": "user", "content": each}]} for each in ("long", "short"))
TIMEOUT_MS, TICK_MS = 3_000, 500
CALL_SECONDS = 12.0
"""Seconds that the long call takes: several times what the broker allows."""


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("version", "profile"), [("3.10", "classic"), ("4.3", "quorum")])
async def test_a_call_that_outlives_the_consumer_timeout_ends_once_and_blocks_no_other(
    own_node: Callable[..., LocalNode],
    sqlite_url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    version: str,
    profile: Any,
) -> None:
    broker_config = (
        f"[{{rabbit, [{{consumer_timeout, {TIMEOUT_MS}}}, {{channel_tick_interval, {TICK_MS}}}, "
        "{quorum_tick_interval, 250}]}]."
    )
    node = await asyncio.to_thread(own_node, version, advanced=broker_config)
    with FakeLlmServer() as llm:
        async with open_system(
            TestBroker(version, profile, "/", node), sqlite_url, modules=MODULES, data_dir=tmp_path
        ) as system:
            overrides = {"llm_base_url": llm.url, "llm_timeout": 60.0}
            system.settings = system.settings.model_copy(update=overrides)
            first = await system.start_worker("llm", slots=3)
            second = await system.start_worker("llm", slots=3)
            llm.next(slow(CALL_SECONDS))
            async with LLMQueue.open(system.settings) as queue:
                long_id = await queue.submit("chat_completion", LONG)
                await eventually(lambda: llm.requests, what="the long call")
                pauses = asyncio.create_task(longest_pause(CALL_SECONDS - 1))
                short_result = await queue.call("chat_completion", SHORT, timeout=60)
                assert short_result.status is LlmStatus.COMPLETED
                assert (await queue.result(long_id, timeout=0.1)).status is LlmStatus.WAITING
                assert await pauses < TIMEOUT_MS / 1000, "the event loop goes on"
                long_result = await queue.result(long_id, timeout=60)
            assert long_result.status is LlmStatus.COMPLETED
            bodies = [request.json["messages"][0]["content"] for request in llm.requests]
            assert sorted(bodies) == ["long", "short"], "each question is sent once"
            record = await system.ledger.job_reads.get(long_id)
            assert record is not None
            assert (record.state, record.attempts, record.crashes) == ("succeeded", 0, 0)
            assert await system.letters() == []
            counts = [each.worker.counters for each in (first, second)]
            assert sum(each.dead for each in counts) == 0
            # 3.10 closes the channel, 4.3 cancels the consumer: the delivery comes again.
            output = capfd.readouterr().out
            if "channel closed" in output:
                assert "delivery acknowledgement on channel" in output, "the log says why"
            assert "channel closed" in output or "consumer cancelled by the broker" in output


async def longest_pause(seconds: float) -> float:
    """Measure for so many seconds; return the longest time that the event loop was blocked."""
    longest, last = 0.0, time.monotonic()
    until = last + seconds
    while last < until:
        await asyncio.sleep(0.05)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest
