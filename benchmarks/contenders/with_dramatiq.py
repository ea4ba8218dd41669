"""Dramatiq with publisher confirms and without the middleware that a no-op does not need."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from benchmarks.common import URL, payload, sample

broker = RabbitmqBroker(
    url=os.environ.get(URL, "amqp://localhost"), confirm_delivery=True, middleware=[]
)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench_dramatiq")
def noop(job: dict[str, Any]) -> None:
    sample(job["number"])


def worker_command() -> list[str]:
    return [
        sys.executable, "-m", "dramatiq", "benchmarks.contenders.with_dramatiq",
        "--processes", "1", "--threads", "8",
    ]  # fmt: skip


def main() -> None:
    count = int(sys.argv[2])
    noop.send(payload(0))
    started = time.perf_counter()
    for number in range(1, count):
        noop.send(payload(number))
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
