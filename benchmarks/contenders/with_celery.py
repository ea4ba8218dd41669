"""Celery, at its best settings for this: JSON, confirms, no results, no gossip."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from celery import Celery
from kombu import Queue

from benchmarks.common import URL, payload, sample

app = Celery("bench", broker=os.environ.get(URL, ""))
app.conf.update(
    broker_transport_options={"confirm_publish": True},
    task_ignore_result=True,
    task_serializer="json",
    task_default_queue="bench.celery",
    task_queues=[Queue("bench.celery", queue_arguments={"x-max-priority": 10})],
    worker_prefetch_multiplier=int(os.environ.get("BENCH_PREFETCH", "100")),
    task_acks_late=os.environ.get("BENCH_ACKS_LATE") == "1",
    broker_pool_limit=1,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)


@app.task(name="noop")
def noop(job: dict[str, Any]) -> None:
    sample(job["number"])


@app.task(name="busy")
def busy(job: dict[str, Any]) -> None:
    time.sleep(job["seconds"])


@app.task(name="hot")
def hot(job: dict[str, Any]) -> None:
    with open(os.environ["BENCH_LATENCIES"], "ab", buffering=0) as file:
        file.write(f"{time.time() - job['sent']:.6f}\n".encode())


def worker_command(pool: str = "prefork", concurrency: int = 2) -> list[str]:
    return [
        sys.executable, "-m", "celery", "-A", "benchmarks.contenders.with_celery", "worker",
        "--pool", pool, "--concurrency", str(concurrency), "--loglevel", "WARNING",
        "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip


def main() -> None:
    count = int(sys.argv[2])
    noop.apply_async((payload(0),))  # connects and declares
    started = time.perf_counter()
    for number in range(1, count):
        noop.apply_async((payload(number),), priority=1)
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
