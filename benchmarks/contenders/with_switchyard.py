"""Switchyard: the publisher alone, and the worker with claim and record in the ledger."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time

from pydantic import BaseModel

from benchmarks.common import SAMPLE_EVERY, payload, sample
from switchyard.broker.errors import PublishError
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.cli.base.long_running import settle_memory, showing_metrics
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import Registry, job
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.metrics import Metrics, watch_ledger
from switchyard.services.engine.runtime.worker import Worker, plan_for

MODULE = "benchmarks.contenders.with_switchyard"


class Job(BaseModel):
    number: int = 0
    pad: str = ""
    seconds: float = 0
    sent: float = 0


@job("noop", worker="llm", lanes=("hot", "backfill"))
async def noop(payload: Job, ctx: JobContext) -> Outcome:
    sample(payload.number)
    return Done()


@job("busy", worker="llm", lanes=("backfill",))
async def busy(payload: Job, ctx: JobContext) -> Outcome:
    await asyncio.sleep(payload.seconds)
    return Done()


@job("hot", worker="llm", lanes=("hot",))
async def hot(payload: Job, ctx: JobContext) -> Outcome:
    with open(os.environ["BENCH_LATENCIES"], "ab", buffering=0) as file:  # noqa: ASYNC230
        file.write(f"{time.time() - payload.sent:.6f}\n".encode())
    return Done()


REPORTERS = 8
"""Handlers of `progress`, which run for as long as the worker does."""
REPORTS = 10_000
"""A second, of all of them."""


@job("reporting", worker="llm", lanes=("hot",))
async def reporting(payload: Job, ctx: JobContext) -> Outcome:
    """Says how far it is, REPORTS times a second in all of them; with BENCH_REPORTS=0 it does the
    same and says nothing."""
    report = ctx.progress if int(os.environ["BENCH_REPORTS"]) else _say_nothing
    each = REPORTS / REPORTERS
    began, said = time.perf_counter(), 0
    while True:
        await asyncio.sleep(0.02)
        while said < (time.perf_counter() - began) * each:
            said += 1
            report(said % 1000 / 1000, "page 12 of 30")


def _say_nothing(_fraction: float, _note: str) -> None:
    return


def worker_command(slots: int, lanes: str = "backfill") -> list[str]:
    return [sys.executable, "-m", MODULE, "work", str(slots), lanes]


async def publish(count: int, job_type: str = "noop") -> float:
    async with Publisher(Settings()) as publisher:
        await publisher.publish(_message(0, job_type), f"backfill.{job_type}")
        started = time.perf_counter()
        results = await publisher.publish_many(
            Outgoing(_message(number, job_type), f"backfill.{job_type}")
            for number in range(1, count)
        )
        seconds = time.perf_counter() - started
    refused = [result for result in results if isinstance(result, PublishError)]
    if refused:
        raise RuntimeError(f"{len(refused)} refused, the first: {refused[0]}")
    return seconds


async def publish_reporters() -> float:
    async with Publisher(Settings()) as publisher:
        for number in range(REPORTERS):
            await publisher.publish(_message(number, "reporting"), "hot.reporting")
    return 0.0


def _message(number: int, job_type: str) -> JobMessage:
    return JobMessage(job_type=job_type, priority=1, payload=payload(number))


async def work(slots: int, lanes: list[str]) -> None:
    configure("warning")
    settle_memory()  # as `jobctl worker` does
    settings = Settings()
    registry = Registry.load(dict.fromkeys([MODULE, *settings.modules]))
    ledger = await Ledger.open(settings.ledger_url)
    share = plan_for(registry, "llm", lanes=lanes, slots=slots)
    metrics = Metrics() if settings.metrics_port is not None else None
    if metrics is not None:
        ledger.observe(watch_ledger(metrics))
    worker = Worker(settings, registry, ledger, [share], metrics=metrics)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    async with showing_metrics(metrics, settings, lambda: worker.is_consuming):
        await worker.run()
    await ledger.close()


def main() -> None:
    if sys.argv[1] == "work":
        asyncio.run(work(int(sys.argv[2]), sys.argv[3].split(",")))
    elif sys.argv[1] == "reporters":
        print(json.dumps({"seconds": asyncio.run(publish_reporters())}))
    else:
        count = int(sys.argv[2])
        assert count % SAMPLE_EVERY == 0
        print(json.dumps({"seconds": asyncio.run(publish(count))}))


if __name__ == "__main__":
    main()
