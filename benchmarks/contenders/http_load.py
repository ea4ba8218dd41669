"""Load for the HTTP API: requests at a fixed rate, whatever the answers do, or as fast as they
come. Plain HTTP/1.1 over asyncio, so that the sender costs little beside what it measures.

A request's time is taken from the moment at which it was due, so one that had to wait for its turn
counts with that wait.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.common import payload

CONNECTIONS = 50
"""Of the mode without a rate."""
CHUNK = 256 * 1024


class Connection:
    """One kept connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> int:
        """Send a request; its answer's status."""
        self._writer.write(request)
        return await self.answer()

    async def answer(self) -> int:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, found, rest = head.partition(b"content-length: ")
        if found:
            await self._reader.readexactly(int(rest.split(b"\r\n", 1)[0]))
        return int(head[9:12])

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port))


def request(key: str, number: int) -> bytes:
    body = json.dumps(
        {"routing_key": "backfill.noop", "payload": payload(number), "source": "bench"}
    ).encode()
    return (
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b"
        % (key.encode(), len(body), body)
    )


async def at_rate(
    port: int,
    make: Callable[[int], bytes],
    rate: float,
    count: int,
    *,
    first: int = 200,
    wanted: int = 202,
) -> dict[str, float]:
    """Requests at a rate, after the `first`, which are not counted; a connection more is opened
    whenever none is free. An answer of another status than the `wanted` is an error."""
    free: deque[Connection] = deque()
    times: list[float] = []
    errors = 0

    async def one(number: int, due: float) -> None:
        nonlocal errors
        try:
            connection = free.popleft() if free else await connect(port)
            status = await connection.ask(make(number))
        except (OSError, EOFError):
            status = 0
        else:
            free.append(connection)
        times.append(time.perf_counter() - due)
        errors += status != wanted

    for number in range(first):  # connections, and what is made at its first use
        await one(-1 - number, time.perf_counter())
    times, errors = [], 0
    start = time.perf_counter() + 0.1
    tasks = []
    for number in range(count):
        due = start + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - start
    times.sort()
    return {
        "p50": quantile(times, 0.5),
        "p95": quantile(times, 0.95),
        "p99": quantile(times, 0.99),
        "errors": errors,
        "rate": count / seconds,
        "connections": len(free),
    }


async def flat_out(
    port: int,
    make: Callable[[int], bytes],
    count: int,
    *,
    connections: int = CONNECTIONS,
    wanted: int = 202,
) -> dict[str, float]:
    """Requests on so many connections at once, as fast as they are answered."""
    left = iter(range(count))
    errors = 0

    async def sender() -> None:
        nonlocal errors
        connection = await connect(port)
        for number in left:
            errors += await connection.ask(make(number)) != wanted
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(sender() for _ in range(connections)))
    return {"rate": count / (time.perf_counter() - start), "errors": errors}


async def upload(port: int, key: str, size: int) -> dict[str, float]:
    """One document of that many bytes."""
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    connection = await connect(port)
    start = time.perf_counter()
    await connection.send(
        b"POST /documents HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n"
        % (key.encode(), len(head) + size + len(tail))
        + head
    )
    line = b"The tide rises, the tide falls. " * (CHUNK // 32)
    for sent in range(0, size, CHUNK):
        await connection.send(line[: min(CHUNK, size - sent)])
    await connection.send(tail)
    status = await connection.answer()
    return {"seconds": time.perf_counter() - start, "status": status}


def quantile(values: list[float], part: float) -> float:
    """Of values in seconds, which are sorted; in milliseconds."""
    return values[math.ceil(len(values) * part) - 1] * 1000


def main() -> None:
    mode, port, *numbers = sys.argv[1:]
    key = Path(os.environ["BENCH_API_KEY"]).read_text()
    make = partial(request, key)
    modes = {
        "rate": lambda: at_rate(int(port), make, float(numbers[0]), int(numbers[1])),
        "flat-out": lambda: flat_out(int(port), make, int(numbers[0])),
        "upload": lambda: upload(int(port), key, int(numbers[0])),
    }
    print(json.dumps(asyncio.run(modes[mode]())))


if __name__ == "__main__":
    main()
