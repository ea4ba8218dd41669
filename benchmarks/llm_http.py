"""The rules of `benchmarks/llm.py` without simulation: workers' lanes, a ledger on PostgreSQL and a
server behind HTTP. The server's time goes by SCALE times as fast, and so do the rules' windows.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.llm import DOMAINS, PAUSE, TIME_LIMIT
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.llm.concurrency_policy import (
    AdaptivePolicy,
    Bounds,
    ConcurrencyPolicy,
    FixedPolicy,
    StepPolicy,
)
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.llm_errors import InvalidLlmResponse, LlmTimeout, LlmUnavailable
from switchyard.services.llm.model_client import ModelClient

SCALE = 2.0
"""Seconds of the server in a real one: client, ledger and server are to keep pace on two cores."""
WORKERS = 2
"""Lanes, each with a ledger of its own."""
LOOK = 0.5

CONTENDERS: dict[str, tuple[ConcurrencyPolicy, Bounds]] = {
    "fixed 50": (FixedPolicy(60 / SCALE), Bounds(50, 50, 50)),
    "steps (requirement L3), 5 to 50": (StepPolicy(10 / SCALE), Bounds(16, 5, 50)),
    "adaptive, 1 to 50": (AdaptivePolicy(5 / SCALE), Bounds()),
    "adaptive, 1 to 200": (AdaptivePolicy(5 / SCALE), Bounds(max_calls=200)),
}


@dataclass
class Outcome:
    """What came of one run; all times in the server's seconds."""

    answered: int = 0
    timed_out: int = 0
    waits: list[float] = field(default_factory=list)
    deepest: int = 0
    """The most questions that were asked, and not at the server."""
    stats: dict[str, Any] = field(default_factory=dict)
    """The server's own account, at the end of the load."""

    @property
    def timeouts(self) -> float:
        return 100 * self.timed_out / max(1, self.answered + self.timed_out)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.waits, n=100)[98]

    @property
    def twice(self) -> int:
        """Questions that were begun again, beyond those whose time was over."""
        begun: dict[str, int] = self.stats["by_question"]
        return max(0, sum(begun.values()) - len(begun) - self.timed_out)


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.llm_server", "--port", "0", "--scale", str(SCALE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@asynccontextmanager
async def _lanes(settings: Settings, policy: ConcurrencyPolicy) -> AsyncIterator[list[ModelClient]]:
    async with AsyncExitStack() as stack:
        lanes = []
        for _ in range(WORKERS):
            ledger = await stack.enter_async_context(await Ledger.open(settings.ledger_url))
            lanes.append(
                await stack.enter_async_context(ModelClient.open(settings, ledger, policy=policy))
            )
        yield lanes


class _Load:
    """300 domains, each with one question under way at most."""

    def __init__(self, lanes: list[ModelClient], url: str, minutes: float) -> None:
        self.outcome = Outcome()
        self._lanes = lanes
        self._url = url.removesuffix("/v1")
        self._seconds = minutes * 60 / SCALE
        self._asking = 0

    async def run(self) -> Outcome:
        end = time.monotonic() + self._seconds
        domains = [asyncio.create_task(self._domain(number, end)) for number in range(DOMAINS)]
        async with httpx.AsyncClient(base_url=self._url, timeout=30) as http:
            while time.monotonic() < end:
                await asyncio.sleep(LOOK)
                here = (await http.get("/stats")).json()["here"]
                self.outcome.deepest = max(self.outcome.deepest, self._asking - here)
            use = (await http.get("/stats")).json()["use"]
            await asyncio.gather(*domains)
            self.outcome.stats = (await http.get("/stats")).json() | {"use": use}
        return self.outcome

    async def _domain(self, number: int, end: float) -> None:
        dice, lane = random.Random(number), self._lanes[number % len(self._lanes)]
        await asyncio.sleep(dice.uniform(0, PAUSE) / SCALE)
        question = 0
        while time.monotonic() < end:
            began = time.monotonic()
            self._asking += 1
            asked = f"domain {number}, question {question}"
            done = await self._ask(lane, asked)
            while not done:
                await asyncio.sleep(dice.uniform(1, 2) / SCALE)
                done = await self._ask(lane, asked)
            self._asking -= 1
            self.outcome.waits.append((time.monotonic() - began) * SCALE)
            question += 1
            await asyncio.sleep(dice.expovariate(1 / PAUSE) / SCALE)

    async def _ask(self, lane: ModelClient, question: str) -> bool:
        asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 1000}
        try:
            await lane.answer(
                asked, urgency=Urgency.from_priority("backfill", 1), timeout=600.0, fresh=True
            )
        except LlmTimeout:
            self.outcome.timed_out += 1
            return False
        except (LlmUnavailable, InvalidLlmResponse):
            return False  # no room yet, or refused: its job would go back
        self.outcome.answered += 1
        return True


async def _run(settings: Settings, policy: ConcurrencyPolicy, url: str, minutes: float) -> Outcome:
    async with _lanes(settings, policy) as lanes:
        return await _Load(lanes, url, minutes).run()


def llm_http(stage: Stage, rounds: int, count: int) -> list[Row]:
    """The rules through HTTP and the ledger, by two workers: COUNT minutes of the server's time,
    two of which go by in a real one."""
    rows: list[Row] = []
    for name, (policy, bounds) in CONTENDERS.items():
        outcomes = []
        for _ in range(rounds):
            ledger = stage.postgres.create_database()
            asyncio.run(upgrade(ledger))
            with _server() as url:
                settings = Settings.model_validate(
                    {
                        "database_url": ledger,
                        "llm_base_url": url,
                        "llm_model": "m",
                        "llm_timeout": TIME_LIMIT / SCALE,
                        "llm_concurrency": bounds.start,
                        "llm_concurrency_min": bounds.min_calls,
                        "llm_concurrency_max": bounds.max_calls,
                        "data_dir": stage.folder("llm-http"),
                    }
                )
                outcomes.append(asyncio.run(_run(settings, policy, url, count)))
        figures = (
            ("time-outs", "%", "under 0.5 %", [each.timeouts for each in outcomes]),
            ("server's use", "%", "at least 95 %", [100 * each.stats["use"] for each in outcomes]),
            ("p99", "s", "under 30 s", [each.p99 for each in outcomes]),
            ("answers", "/s", "over 10/s", [each.answered / count / 60 for each in outcomes]),
            ("depth", "waiting", "under 500", [float(each.deepest) for each in outcomes]),
            ("at once", "calls", f"{bounds.max_calls}", [float(e.stats["most"]) for e in outcomes]),
            ("run twice", "questions", "none", [float(each.twice) for each in outcomes]),
        )
        for figure, unit, target, values in figures:
            rows.append(Row(f"{name}: {figure}", unit, values, target=target))
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"llm_http": (llm_http, 1, 10)}
