"""Questions to a gateway for language models, from a process of its own.

python -m benchmarks.contenders.chat_load MODE PORT …
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contenders.http_load import Connection, at_rate, connect, flat_out, quantile
from benchmarks.contenders.model_server import MODEL

FLAT_OUT, BESIDE, EQUAL = 1_000_000, 2_000_000, 3_000_000
"""First numbers of the modes' questions: none asks what another has asked."""
CONNECTIONS = 32
"""Of the mode without a rate."""
WARM = 40
"""Requests before those that are counted."""
HOT_PAUSE = 0.25
"""Seconds between the questions of `beside`."""
QUEUEING = 20
"""Connections on which work that may wait is put into a queue."""
CONNECT_PAUSE = 0.002
"""Seconds between new connections, so that no backlog of a listening socket is full."""


def chat(key: str, number: int) -> bytes:
    """The request of a question: another one for each number. Our gateway is told that its client
    may go; others ignore that."""
    return _post(key, b"/v1/chat/completions", {"model": MODEL, **_question(number)})


def queued_chat(key: str, number: int) -> bytes:
    """The same, as work that may wait, at our gateway: accepted at once, answered some time."""
    payload = {"payload": _question(number), "lane": "backfill"}
    return _post(key, b"/llm/requests", payload)


def _question(number: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "You answer in one sentence. " * 8},
        {"role": "user", "content": f"What is known about the tide of day {number}"},
    ]
    return {"messages": messages, "max_tokens": 64}


def _post(key: str, path: bytes, value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    return (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: application/json\r\nX-Job-Background: true\r\nContent-Length: %d\r\n\r\n%b"
        % (path, key.encode(), len(body), body)
    )


async def beside(port: int, key: str, count: int, hot: int, *, queued: bool) -> dict[str, float]:
    """`hot` questions one after the other, while `count` others wait: in the gateway's queue where
    it has one, else on connections of their own."""
    waiting: list[asyncio.Task[int]] = []
    if queued:
        await flat_out(port, partial(queued_chat, key), count, connections=QUEUEING)
    else:
        for number in range(count):
            waiting.append(asyncio.create_task(_status(port, chat(key, number))))
            await asyncio.sleep(CONNECT_PAUSE)
    times = []
    connection = await connect(port)
    errors = 0
    for number in range(hot):
        await asyncio.sleep(HOT_PAUSE)
        began = time.perf_counter()
        errors += await connection.ask(chat(key, BESIDE + number)) != 200
        times.append(time.perf_counter() - began)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    times.sort()
    return {
        "p50": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "errors": errors,
    }


async def together(port: int, key: str, count: int, *, equal: bool) -> dict[str, float]:
    """Many questions at once, all equal or none; ends when each has an answer or was cut off."""
    statuses = await asyncio.gather(
        *(_status(port, chat(key, EQUAL if equal else number)) for number in range(count))
    )
    return {"answered": sum(each == 200 for each in statuses)}


async def _status(port: int, request: bytes) -> int:
    """The status of the answer; 0 where the connection was cut."""
    connection: Connection | None = None
    try:
        connection = await connect(port)
        return await connection.ask(request)
    except (OSError, EOFError):
        return 0
    finally:
        if connection is not None:
            connection.close()


def main() -> None:
    mode, port, *numbers = sys.argv[1:]
    key = Path(os.environ["BENCH_API_KEY"]).read_text()
    count = int(numbers[-1])

    def numbered(first: int) -> Callable[[int], bytes]:
        return lambda number: chat(key, first + number)

    modes = {
        "rate": lambda: at_rate(
            int(port), numbered(0), float(numbers[0]), count, first=WARM, wanted=200
        ),
        "flat-out": lambda: flat_out(
            int(port), numbered(FLAT_OUT), count, connections=CONNECTIONS, wanted=200
        ),
        "beside": lambda: beside(int(port), key, int(numbers[0]), count, queued=False),
        "beside-queued": lambda: beside(int(port), key, int(numbers[0]), count, queued=True),
        "equal": lambda: together(int(port), key, count, equal=True),
        "different": lambda: together(int(port), key, count, equal=False),
    }
    print(json.dumps(asyncio.run(modes[mode]())))


if __name__ == "__main__":
    main()
