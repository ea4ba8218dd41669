"""`make bench ARGS=gateway`: our `/v1` and LiteLLM's proxy in front of the same server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from benchmarks.common import environment, module_command, run_json
from benchmarks.contenders.model_server import MODEL
from benchmarks.footprint import JOBCTL, Running, start_processes, wait_until_ready
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.cli.system.free_ports import free_port
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.wings import job_modules

LITELLM = Path(
    os.environ.get("BENCH_LITELLM")
    or Path(sys.prefix).parent / f"{Path(sys.prefix).name}-litellm" / "bin" / "litellm"
)
"""LiteLLM's proxy, in an environment of its own: it pins other versions of our libraries."""
DIRECT = "no gateway"
READY = "-1"
"""Number of the question by which it is seen that a gateway answers."""
RATE, RATE_COUNT = 10, 200
"""Requests a second of the latencies, which each gateway bears on two cores beside the sender and
the server; and how many."""
FLAT_OUT = 500
"""Requests, as fast as they go."""
DELAY, AT_ONCE = 0.02, 1000
"""The server answers in so many seconds; that many requests at once."""
SMALL_DELAY, SMALL_AT_ONCE = 0.2, 4
"""The same of the server behind which work gathers."""
KNOWN_CAPACITY = {
    "JOBS_LLM_PACING": "fixed",
    "JOBS_LLM_CONCURRENCY": "200",
    "JOBS_LLM_CONCURRENCY_MAX": "200",
}
"""Our settings where the server takes more than it gets. What the small one takes is left to be
found, as by default: with a limit that is too high, calls would wait in the server, hot ones too.
"""
DIRECT_CALLS = 32
"""Requests that our API sends to the server itself at a time, where it may."""
HOT = 40
"""Hot questions beside those that wait."""
EQUAL = 50
KILLED = 200
"""Questions that are under way when the gateway is killed."""
RECOVERY = 120.0
"""Seconds that a gateway gets to answer, after its restart, what was under way before."""


@dataclass
class Gateway:
    """A gateway in front of the server: its processes, and how it is asked. Without commands, the
    server itself."""

    name: str
    port: int
    sender: dict[str, str]
    """Environment of who asks."""
    folder: Path
    commands: Sequence[Sequence[str]] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    is_queueing: bool = False
    """Whether it takes work that is answered later."""
    _processes: ExitStack = field(default_factory=ExitStack, init=False)
    _running: Running = field(default_factory=lambda: Running(()), init=False)

    def __enter__(self) -> Gateway:
        if self.commands:
            started = start_processes(self.commands, self.folder, dict(self.settings))
            self._running = self._processes.enter_context(started)
            wait_until_ready(self._running, self._answers)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def _answers(self) -> bool:
        question = {"model": MODEL, "messages": [{"role": "user", "content": f"ready? {READY}"}]}
        key = Path(self.sender["BENCH_API_KEY"]).read_text()
        with httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False) as client:
            headers = {"Authorization": f"Bearer {key}"}
            try:
                asked = client.post(
                    "/v1/chat/completions", json=question, headers=headers, timeout=10
                )
            except httpx.TransportError:
                return False
        return asked.is_success

    def kill(self) -> None:
        """End all its processes at once, as a power cut would."""
        for each in self._running.roots:
            os.killpg(each.pid, signal.SIGKILL)
        self._processes.close()

    def load(self, mode: str, *arguments: object) -> dict[str, float]:
        """Run a mode of the sender to its end."""
        return run_json(self._command(mode, *arguments), self.sender, timeout=1800)

    @contextmanager
    def loading(self, mode: str, *arguments: object) -> Iterator[None]:
        """Run a mode of the sender beside; its end is waited for."""
        command = self._command(mode, *arguments)
        with subprocess.Popen(command, env=self.sender, stdout=subprocess.DEVNULL):
            yield

    def processor_seconds(self) -> float:
        """What all its processes have used so far."""
        return self._running.processor_seconds()

    def _command(self, mode: str, *arguments: object) -> list[str]:
        return module_command("chat_load", mode, self.port, *arguments)


@dataclass(frozen=True)
class ModelServer:
    """The server that is asked."""

    port: int
    at_once: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answered(self) -> dict[str, int]:
        """How often each question was answered whole, but for that of `Gateway.__enter__`."""
        stats = httpx.get(f"http://127.0.0.1:{self.port}/stats", trust_env=False)
        found: dict[str, int] = stats.json()
        found.pop(READY, None)
        return found

    def clear(self) -> None:
        httpx.post(f"http://127.0.0.1:{self.port}/clear", trust_env=False)


@contextmanager
def _model_server(delay: float, at_once: int) -> Iterator[ModelServer]:
    command = module_command("model_server", delay, at_once)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ModelServer(int(process.stdout.readline()), at_once)
        finally:
            process.kill()


def _direct(stage: Stage, server: ModelServer) -> Gateway:
    return Gateway(DIRECT, server.port, _sender(stage, "none"), stage.directory)


def _switchyard(
    stage: Stage, server: ModelServer, *, ledger: str, is_direct: bool = False
) -> Gateway:
    """One API process, one worker and one scheduler of ours, beside a broker; `is_direct`: the API
    asks the server itself while nothing waits (JOBS_LLM_DIRECT_CALLS)."""
    own = stage.switchyard("gateway", ledger, modules=job_modules())
    port = free_port()
    pacing = {} if server.at_once == SMALL_AT_ONCE else KNOWN_CAPACITY
    settings = {
        **own,
        **pacing,
        "JOBS_LLM_BASE_URL": server.url,
        "JOBS_LLM_MODEL": MODEL,
        "JOBS_API_RATE_LIMIT": "1000000",
        "JOBS_API_RATE_BURST": "1000000",
        "JOBS_API_MAX_STREAMS": "2000",
        "JOBS_LLM_DIRECT_CALLS": str(DIRECT_CALLS if is_direct else 0),
    }
    return Gateway(
        f"switchyard on {ledger}{', direct' if is_direct else ''}",
        port,
        _sender(stage, asyncio.run(_key(own["JOBS_DATABASE_URL"]))),
        stage.folder("run"),
        [
            [*JOBCTL, "api", "--port", str(port)],
            [*JOBCTL, "worker", "llm", "--concurrency", "64"],
            [*JOBCTL, "scheduler"],
        ],
        settings,
        is_queueing=True,
    )


def _litellm(stage: Stage, server: ModelServer) -> Gateway:
    """LiteLLM's proxy as its documentation starts it, with a key and without a database."""
    folder, port, key = stage.folder("litellm"), free_port(), "sk-bench"
    parameters = {"model": f"openai/{MODEL}", "api_base": server.url, "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
        "general_settings": {"master_key": key},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [str(LITELLM), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1"]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    return Gateway(
        "litellm",
        port,
        _sender(stage, key),
        folder,
        [[*command, "--port", str(port), "--telemetry", "False"]],
        settings,
    )


def _sender(stage: Stage, key: str) -> dict[str, str]:
    file = stage.folder("key") / "key"
    file.write_text(key)
    return environment("", BENCH_API_KEY=str(file))


async def _key(database_url: str) -> str:
    async with await Ledger.open(database_url) as ledger:
        return (await create_key(ledger, "bench", [Scope.PUBLISH])).key


Contender = Callable[[Stage, ModelServer], Gateway]
CONTENDERS: tuple[Contender, ...] = (
    partial(_switchyard, ledger="sqlite"),
    partial(_switchyard, ledger="postgresql"),
    _litellm,
)
DIRECT_CONTENDERS: tuple[Contender, ...] = (
    partial(_switchyard, ledger="sqlite", is_direct=True),
    partial(_switchyard, ledger="postgresql", is_direct=True),
)
"""Measured for what a call costs alone: work that waits belongs into the lanes."""


def gateway(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Our `/v1` and LiteLLM's proxy before a server that answers at once: what they add, bear and
    cost; hot questions beside COUNT that wait for a small server; equal questions; a kill."""
    contenders = CONTENDERS if LITELLM.exists() else CONTENDERS[:-1]
    report = _Report()
    for _ in range(rounds):
        with _model_server(DELAY, AT_ONCE) as server:
            plain = _direct(stage, server).load("rate", RATE, RATE_COUNT)
            for make in (*contenders, *DIRECT_CONTENDERS):
                with make(stage, server) as each:
                    _measure_cost(each, server, plain, report)
        for make in contenders:
            with _model_server(SMALL_DELAY, SMALL_AT_ONCE) as server:
                with make(stage, server) as each:
                    mode = "beside-queued" if each.is_queueing else "beside"
                    waited = each.load(mode, count, HOT)
                for part in ("p50", "p99"):
                    report.add(each, f"hot beside {count:,} that wait, {part}", "ms", waited[part])
            with _model_server(SMALL_DELAY, SMALL_AT_ONCE) as server:
                each = make(stage, server)
                lost, twice = _kill(each, server)
                what = f"killed with {KILLED} under way"
                report.add(each, f"{what}, never answered", "", lost, "0")
                report.add(each, f"{what}, answered twice", "", twice)
    return list(report.rows.values())


class _Report:
    """The rows, in the order in which their figures come."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, each: Gateway, figure: str, unit: str, value: float, target: str = "") -> None:
        name = f"{each.name}: {figure}"
        self.rows.setdefault(name, Row(name, unit, target=target)).rounds.append(value)


def _measure_cost(
    each: Gateway, server: ModelServer, plain: Mapping[str, float], report: _Report
) -> None:
    """What a gateway adds to the times of the `plain` server, bears and costs; and how often it
    asks the same."""
    figures = each.load("rate", RATE, RATE_COUNT)
    for part, target in (("p50", "under 5 ms"), ("p99", "")):
        report.add(each, f"added, {part}", "ms", figures[part] - plain[part], target)
    used = each.processor_seconds()
    figures = each.load("flat-out", FLAT_OUT)
    used = each.processor_seconds() - used
    report.add(each, "most requests", "/s", figures["rate"])
    report.add(each, "processor time", "ms/request", used / FLAT_OUT * 1000)
    server.clear()
    each.load("equal", EQUAL)
    paid = float(sum(server.answered().values()))
    report.add(each, f"{EQUAL} equal questions at once, asked", "times", paid, "1")


def _kill(gateway: Gateway, server: ModelServer) -> tuple[float, float]:
    """Kill a gateway in the middle of its questions and start it again, with nobody who asks again:
    how many are never answered, and how many the server has answered twice."""
    with gateway:
        server.clear()
        with gateway.loading("different", KILLED):
            # By then it has taken in all of them: whoever waits to be let in is not under way.
            _wait_for(lambda: len(server.answered()) >= KILLED * 3 // 4, RECOVERY)
            gateway.kill()
    with gateway:
        _wait_for(lambda: len(server.answered()) >= KILLED, RECOVERY if gateway.is_queueing else 5)
        answered = server.answered()
    return float(KILLED - len(answered)), float(sum(each > 1 for each in answered.values()))


def _wait_for(is_over: Callable[[], bool], timeout: float) -> None:
    """Wait until that is true, or the time is over."""
    deadline = time.monotonic() + timeout
    while not is_over() and time.monotonic() < deadline:
        time.sleep(0.1)


ALL: dict[str, tuple[Measurement, int, int]] = {"gateway": (gateway, 1, 5_000)}
"""Name → measurement, rounds, requests that wait."""
