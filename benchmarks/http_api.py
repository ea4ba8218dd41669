"""The HTTP API under load: one process of it, PostgreSQL, a broker, and a sender of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common import end_group, environment, module_command, resident_memory, run_json
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.cli.system.free_ports import free_port
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.wings import job_modules

RATE = 200
"""Requests a second."""
MODULES = (*job_modules(), "benchmarks.contenders.with_switchyard")
UPLOAD_MB = 200


@dataclass
class Server:
    """A running `jobctl api`."""

    pid: int
    port: int
    env: dict[str, str]

    def load(self, *arguments: object) -> dict[str, float]:
        """Run a mode of the sender to its end."""
        mode, *rest = arguments
        return run_json(module_command("http_load", mode, self.port, *rest), self.env)

    def memory(self, what: str = "VmRSS") -> float:
        """As `common.resident_memory`."""
        return resident_memory(what, of=self.pid)

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server(stage: Stage, **settings: str) -> Iterator[Server]:
    own = stage.switchyard("api", "postgresql", modules=MODULES)
    key = asyncio.run(_key(own["JOBS_DATABASE_URL"]))
    key_file = stage.directory / "api-key"
    key_file.write_text(key)
    env = environment(
        "",
        **own,
        JOBS_MODULES=MODULES[-1],
        JOBS_LOG_FORMAT="json",
        JOBS_API_RATE_LIMIT="1000000",
        JOBS_API_RATE_BURST="1000000",
        BENCH_API_KEY=str(key_file),
        **settings,
    )
    command = [sys.executable, "-m", "switchyard.cli.main", "api", "--port"]
    with serving(stage, command, env) as server:
        yield server


@contextmanager
def _plain_server(stage: Stage) -> Iterator[Server]:
    """What one would write without a job system: `contenders.with_fastapi`."""
    key_file = stage.directory / "no-key"
    key_file.write_text("none")
    env = environment(
        stage.vhost("plain-api"),
        JOBS_DATABASE_URL=stage.postgres.create_database(),
        BENCH_API_KEY=str(key_file),
    )
    with serving(stage, module_command("with_fastapi"), env) as server:
        yield server


@contextmanager
def serving(stage: Stage, command: list[str], env: dict[str, str]) -> Iterator[Server]:
    port = free_port()
    log = stage.directory / "api.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(port)],
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_for(process, port, log)
        yield Server(process.pid, port, env)
    finally:
        end_group(process)


async def _key(database_url: str) -> str:
    async with await Ledger.open(database_url) as ledger:
        return (await create_key(ledger, "bench", [Scope.PUBLISH])).key


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        while True:
            try:
                if client.get("/health/ready").is_success:
                    return
            except httpx.TransportError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the API did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


def api(stage: Stage, rounds: int, count: int) -> list[Row]:
    """`POST /jobs` at 200 a second, on PostgreSQL; from the moment that each request was due."""
    rows = {
        "p50": Row("answered, p50", "ms"),
        "p95": Row("answered, p95", "ms", target="under 20 ms"),
        "p99": Row("answered, p99", "ms", target="under 50 ms"),
        "errors": Row("not answered with 202", "requests", target="0"),
        "rate": Row("requests", "/s", target=f"{RATE} /s"),
        "cpu": Row("CPU of the server", "ms/request", target="at most the plain endpoint's"),
        "before": Row("memory of the server before", "MB"),
        "after": Row("memory of the server after", "MB", target="under 150 MB"),
    }
    plain = {
        "p50": Row("plain endpoint: answered, p50", "ms"),
        "p99": Row("plain endpoint: answered, p99", "ms"),
        "cpu": Row("plain endpoint: CPU", "ms/request"),
    }
    for _ in range(rounds):
        for opened, some in ((_server, rows), (_plain_server, plain)):
            with opened(stage) as server:
                figures = _at_rate(server, count)
            for name, row in some.items():
                row.rounds.append(figures[name])
    rows["cpu"].ratio = rows["cpu"].median / plain["cpu"].median
    return [*rows.values(), *plain.values()]


def _at_rate(server: Server, count: int) -> dict[str, float]:
    server.load("rate", RATE, RATE)  # the first requests make what is made once
    figures = {"before": server.memory()}
    cpu = server.cpu()
    figures |= server.load("rate", RATE, count)
    figures["cpu"] = (server.cpu() - cpu) / (count + 200) * 1000
    figures["after"] = server.memory()
    return figures


def api_memory(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Memory of the server through `count` requests, as fast as they go, and a large upload."""
    rows = {
        "rate": Row("requests, 50 connections", "/s"),
        "errors": Row("not answered with 202", "requests", target="0"),
        "before": Row("memory after the first tenth", "MB"),
        "after": Row(f"memory after {count:,} requests", "MB", target="under 150 MB"),
        "status": Row(f"status of an upload of {UPLOAD_MB} MB", "", target="202"),
        "seconds": Row("time that it takes", "s"),
        "peak": Row("most memory until its end", "MB", target="under 150 MB"),
    }
    size = UPLOAD_MB * 1024 * 1024
    for _ in range(rounds):
        with _server(stage, JOBS_MAX_DOCUMENT_BYTES=str(2 * size)) as server:
            server.load("flat-out", count // 10)
            figures = {"before": server.memory()}
            figures |= server.load("flat-out", count - count // 10)
            figures["after"] = server.memory()
            figures |= server.load("upload", size)
            figures["peak"] = server.memory("VmHWM")
        for name, row in rows.items():
            row.rounds.append(figures[name])
    rows["after"].ratio = rows["after"].median / rows["before"].median
    return list(rows.values())


ALL: dict[str, tuple[Measurement, int, int]] = {
    "api": (api, 2, 6_000),
    "api-memory": (api_memory, 1, 50_000),
}
"""Name → measurement, rounds, requests."""
