"""`make bench ARGS=year`: does anything grow while a year of jobs comes and goes?"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.common import end_group, environment, payload, resident_memory
from benchmarks.contenders import with_switchyard, year_of_jobs
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.logs import configure
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.broker import system_guard
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.usage import measure_usage
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher, Published

DAY = 10.0
"""Seconds; everything is kept for one day."""
JOBS_A_DAY = 5_480
"""Two million in a year."""
HOT_INTERVAL = 0.05
"""Seconds between two hot jobs."""
BATCH = 50
"""Jobs that are published together."""
MAX_WAITING = 2_000
"""Jobs in the queue, from which on publishing waits: on a slow machine a day has fewer."""
SLOTS = 50
START_TIMEOUT = 120.0
PARTS = 6
"""Into which the year is cut; the first, in which all that is kept comes together, counts for
nothing."""
SHARE_WITHOUT_PRUNING = 0.08
"""Of the days, before the year and after it again, for the latency of hot jobs without pruning."""
MAX_DAYS_WITHOUT_PRUNING = 10
"""Enough hot jobs for a p99, however long the year is."""
TARGET = "at most 1.1 ×"


def year_sqlite(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Many small jobs, kept for a day of 10 s: what ledger, files, index and broker take in the
    last sixth of the time, against the second; hot jobs while all that is removed, and without."""
    return _year(stage, "sqlite", count)


def year_postgresql(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Many small jobs, kept for a day of 10 s: what ledger, files, index and broker take in the
    last sixth of the time, against the second; hot jobs while all that is removed, and without."""
    return _year(stage, "postgresql", count)


@dataclass
class _Series:
    """A size at the end of each day."""

    unit: str
    values: list[float] = field(default_factory=list)

    def row(self, name: str) -> Row:
        cut = [len(self.values) * part // PARTS for part in range(PARTS + 1)]
        parts = [statistics.median(self.values[first:last]) for first, last in pairwise(cut)]
        row = Row(name, self.unit, parts, TARGET)
        row.ratio = parts[-1] / parts[1] if parts[1] else 1.0
        return row


@dataclass
class _System:
    """What is driven, and what was seen of it."""

    settings: Settings
    ledger: Ledger
    publisher: JobPublisher
    hot: Publisher
    management: ManagementClient
    latencies: Path
    broker_files: Path
    series: dict[str, _Series] = field(default_factory=dict)
    published: int = 0
    published_before: int = 0
    """Until the last look."""
    waited: float = 0.0
    """Seconds for which publishing waited for the worker."""

    async def days(self, number: float) -> tuple[float, float]:
        """Publish for so many days; p50 and p99 of the hot jobs meanwhile, ms."""
        seen = len(_lines(self.latencies))
        until = time.monotonic() + number * DAY
        await asyncio.gather(self._publish(until), self._publish_hot(until))
        await asyncio.sleep(1)
        values = sorted(float(line) * 1000 for line in _lines(self.latencies)[seen + 10 :])
        return values[len(values) // 2], values[math.ceil(len(values) * 0.99) - 1]

    async def first_hot(self) -> None:
        """Wait until the worker works. Raises TimeoutError."""
        async with asyncio.timeout(START_TIMEOUT):
            while not _lines(self.latencies):
                await self._publish_hot(time.monotonic() + 1)

    async def _publish(self, until: float) -> None:
        pace = BATCH * DAY / JOBS_A_DAY
        due = looked_at = time.monotonic()
        while (now := time.monotonic()) < until:
            if now - looked_at > 1:
                looked_at = now
                while await self._waiting() > MAX_WAITING:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.5)
                self.waited += time.monotonic() - now
            requests = [
                JobRequest(
                    "backfill.ordinary",
                    payload(self.published + number),
                    source=f"source-{number % 10}",
                    tags={"team": "search"} if number % 10 == 0 else {},
                )
                for number in range(BATCH)
            ]
            for outcome in await self.publisher.publish_many(requests):
                assert isinstance(outcome, Published), outcome
            self.published += BATCH
            due = max(due + pace, time.monotonic() - pace)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _waiting(self) -> int:
        return (await self.management.queue_sizes())["backfill.llm"][0]

    async def _publish_hot(self, until: float) -> None:
        while time.monotonic() < until:
            message = JobMessage(job_type="hot", priority=10, payload={"sent": time.time()})
            await self.hot.publish(message, "hot.hot")
            await asyncio.sleep(HOT_INTERVAL)

    async def look(self, processes: dict[str, int]) -> None:
        """Note how large everything is now."""
        usage = await measure_usage(self.settings, self.ledger, timeout=None)
        self._note("jobs published in the day", "", self.published - self.published_before)
        self.published_before = self.published
        assert usage.ledger is not None, usage.missing
        assert usage.files is not None, usage.missing
        assert usage.queues is not None, usage.missing
        assert usage.index_bytes is not None, usage.missing
        self._note("ledger", "MB", usage.ledger.bytes / 1e6)
        for table in usage.ledger.tables:
            self._note(f"ledger, rows of {table.name}", "", table.rows)
        self._note("files", "", sum(each.files for each in usage.files))
        self._note("files, size", "MB", sum(each.bytes for each in usage.files) / 1e6)
        self._note("index", "MB", usage.index_bytes / 1e6)
        self._note("broker, messages", "", sum(each.messages for each in usage.queues))
        self._note("broker, files", "MB", _size(self.broker_files) / 1e6)
        (node,) = await self.management.get("/nodes")
        self._note("broker, memory", "MB", node["mem_used"] / 1e6)
        for name, pid in processes.items():
            self._note(f"{name}, memory", "MB", resident_memory(of=pid))

    def _note(self, name: str, unit: str, value: float) -> None:
        self.series.setdefault(name, _Series(unit)).values.append(value)


def _year(stage: Stage, kind: str, count: int) -> list[Row]:
    configure("warning")
    modules = (with_switchyard.MODULE, year_of_jobs.MODULE)
    latencies = stage.directory / f"latencies-{kind}"
    env = environment(
        "",
        stage.directory / "samples",
        **stage.switchyard("year", kind, modules=modules),
        BENCH_LATENCIES=str(latencies),
        JOBS_MODULES=year_of_jobs.MODULE,
        JOBS_EMBED_OFFLINE="hashed",
        **{year_of_jobs.DAY: str(DAY)},
    )
    days = max(2 * PARTS, round(count / JOBS_A_DAY))
    return asyncio.run(_measured(stage, env, days))


async def _measured(ground: Stage, env: dict[str, str], days: int) -> list[Row]:
    async with AsyncExitStack() as stack:
        system = await _opened(stack, ground, env)
        worker = stack.enter_context(
            _running(with_switchyard.worker_command(SLOTS, "hot,backfill"), env, ground.directory)
        )
        await system.first_hot()
        without = min(days * SHARE_WITHOUT_PRUNING, MAX_DAYS_WITHOUT_PRUNING)
        with _scheduling("keep", env, ground.directory):
            await system.days(1)  # what is loaded or opened first
            before = await system.days(without)
        log = ground.directory / f"{year_of_jobs.MODULE.rpartition('.')[2]}.log"
        seen = len(_lines(log))
        with _scheduling("prune", env, ground.directory) as scheduler:
            await system.days(1)  # removes what has gathered
            pruning = await _through(
                system, days, {"worker": worker.pid, "scheduler": scheduler.pid}
            )
        with _scheduling("keep", env, ground.directory):
            after = await system.days(without)
    rows = [each.row(name) for name, each in system.series.items() if any(each.values)]
    for name, index in (("p50", 0), ("p99", 1)):
        none = Row(f"hot, {name}, without pruning", "ms", [before[index], after[index]])
        hot = Row(f"hot, {name}, while pruning", "ms", [each[index] for each in pruning])
        hot.ratio = hot.median / none.median
        rows += [none, hot]
    rows += _transactions(_lines(log)[seen:])
    return [*rows, Row("jobs", "", [system.published]), Row("waited", "s", [system.waited])]


def _transactions(log: Sequence[str]) -> list[Row]:
    """How long the pruner's transactions took, by its own last line."""
    last = json.loads([line for line in log if "old records removed" in line][-1])
    share = 100 * last["over_50_ms"] / last["transactions"]
    return [
        Row("pruning, longest transaction", "ms", [1000 * last["longest_transaction"]], "under 50"),
        Row("pruning, transactions over 50 ms", "%", [share], "0"),
    ]


async def _through(
    system: _System, days: int, processes: dict[str, int]
) -> list[tuple[float, float]]:
    """Let the days pass; p50 and p99 of hot jobs in each sixth."""
    found = []
    for _ in range(PARTS):
        passing = asyncio.create_task(system.days(days / PARTS))
        while not passing.done():
            await asyncio.wait([passing], timeout=DAY)
            await system.look(processes)
        found.append(await passing)
    return found


async def _opened(stack: AsyncExitStack, ground: Stage, env: dict[str, str]) -> _System:
    settings = Settings.model_validate(
        {
            name[5:].lower(): value
            for name, value in env.items()
            if name.startswith("JOBS_") and name != "JOBS_MODULES"
        }
    )
    ledger = await stack.enter_async_context(await Ledger.open(settings.ledger_url))
    publisher = await stack.enter_async_context(
        Publisher(settings, guard=system_guard(settings, ledger))
    )
    management = await stack.enter_async_context(
        ManagementClient(settings.require_management_url(), settings.vhost)
    )
    registry = Registry.load([with_switchyard.MODULE, year_of_jobs.MODULE])
    return _System(
        settings,
        ledger,
        JobPublisher(registry, ledger, publisher),
        publisher,
        management,
        Path(env["BENCH_LATENCIES"]),
        ground.directory / "broker",
    )


def _scheduling(
    how: str, env: dict[str, str], directory: Path
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return _running([sys.executable, "-m", year_of_jobs.MODULE, "schedule", how], env, directory)


@contextmanager
def _running(
    command: list[str], env: dict[str, str], directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and fail where it has ended by itself."""
    log = directory / f"{command[2].rpartition('.')[2]}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        status = process.poll()
        end_group(process)
        if status is not None:
            tail = log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{command} has ended with {status}: {tail}")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _size(directory: Path) -> int:
    """Bytes of all files below; those that go meanwhile count for nothing."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


ALL: dict[str, tuple[Measurement, int, int]] = {
    "year-sqlite": (year_sqlite, 1, 300_000),
    "year-postgresql": (year_postgresql, 1, 300_000),
}
"""Name → measurement, rounds, jobs."""
