"""What is measured. Each takes the stage and gives rows of the report."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.common import (
    cpu_of_jobs,
    drained_rate,
    end_group,
    environment,
    module_command,
    run_json,
)
from benchmarks.contenders import with_switchyard
from benchmarks.stage import Stage
from switchyard.cli.system.free_ports import free_port

PEERS = ("celery", "dramatiq", "taskiq", "faststream")
SLOTS = 500
"""Jobs at once of the asyncio workers, and prefetch of all."""


@dataclass
class Row:
    """One figure: its rounds, and what it is held against."""

    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)
    target: str = ""
    ratio: float | None = None
    """Of the medians, where it is compared with another row."""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float | None:
        """From the lowest to the highest round, as a part of the median; None where there is only
        one, or the median is 0."""
        if len(self.rounds) < 2 or not self.median:
            return None
        return (max(self.rounds) - min(self.rounds)) / abs(self.median)


def _peer(name: str) -> str:
    return f"with_{name}"


def _peer_command(name: str) -> list[str]:
    # Imported here: a contender may be missing, and the others still run.
    module = __import__(f"benchmarks.contenders.with_{name}", fromlist=["worker_command"])
    command: list[str] = module.worker_command()
    return command


def publish(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Confirmed, persistent publishes of 1 KB jobs from one process."""
    rows = {name: Row(name, "jobs/s") for name in ("switchyard", "plain", *PEERS)}
    for _ in range(rounds):
        env = environment("", **stage.switchyard("publish"))
        seconds = run_json(module_command("with_switchyard", "publish", count), env)["seconds"]
        rows["switchyard"].rounds.append((count - 1) / seconds)
        for name in ("plain", *PEERS):
            env = environment(stage.vhost("peers"))
            # The slow ones get fewer, so that a round takes about as long for each.
            number = count if name in ("plain", "taskiq", "faststream") else max(count // 4, 100)
            module = name if name == "plain" else _peer(name)
            seconds = run_json(module_command(module, "publish", number), env)["seconds"]
            rows[name].rounds.append((number - 1) / seconds)
    ours = rows["switchyard"]
    best = max((rows[name] for name in PEERS), key=lambda row: row.median)
    rows["plain"].ratio = ours.median / rows["plain"].median
    rows["plain"].target = "at least 1.2 ×"
    best.ratio = ours.median / best.median
    best.target = "at least 2 × the best"
    return list(rows.values())


def consume(stage: Stage, rounds: int, count: int) -> list[Row]:
    """No-op jobs of 1 KB, worked off from a full queue; ours with claim and record."""
    names = ("switchyard on SQLite", "switchyard on PostgreSQL", *PEERS)
    rows = {name: Row(name, "jobs/s") for name in names}
    for _ in range(rounds):
        for ledger, name in (("sqlite", names[0]), ("postgresql", names[1])):
            samples = stage.directory / "samples"
            settings = stage.switchyard(f"consume-{ledger}", ledger)
            env = environment("", samples, **settings)
            run_json(module_command("with_switchyard", "publish", count), env)
            command = with_switchyard.worker_command(SLOTS)
            rows[name].rounds.append(drained_rate(command, env, count))
        for name in PEERS:
            env = environment(stage.vhost("peers"), stage.directory / "samples")
            run_json(module_command(_peer(name), "publish", count), env)
            rows[name].rounds.append(drained_rate(_peer_command(name), env, count))
    best = max((rows[name] for name in PEERS), key=lambda row: row.median)
    for name, target in ((names[0], "at least 1.0 ×"), (names[1], "at least 0.6 ×")):
        rows[name].ratio = rows[name].median / best.median
        rows[name].target = f"{target} the best of the four ({best.name})"
    return list(rows.values())


def progress(stage: Stage, rounds: int, count: int) -> list[Row]:
    """No-op jobs worked off beside 8 handlers that say nothing, and that report 10,000 times/s."""
    rows = {
        "0": Row("8 handlers that report nothing", "jobs/s"),
        "1": Row("10,000 reports a second", "jobs/s"),
    }
    for number in range(rounds):
        # Whichever comes second finds a warmer machine: they take turns.
        for reports in sorted(rows, reverse=bool(number % 2)):
            samples = stage.directory / "samples"
            settings = stage.switchyard("progress")
            env = environment("", samples, BENCH_REPORTS=reports, **settings)
            run_json(module_command("with_switchyard", "publish", count), env)
            run_json(module_command("with_switchyard", "reporters"), env)
            command = with_switchyard.worker_command(SLOTS, "hot,backfill")
            rows[reports].rounds.append(drained_rate(command, env, count))
    rows["1"].ratio = rows["1"].median / rows["0"].median
    rows["1"].target = "at least 0.95 ×"
    return list(rows.values())


def metrics_cost(stage: Stage, rounds: int, count: int) -> list[Row]:
    """CPU for each no-op job of a worker without metrics, and of one scraped for every second of
    CPU that it uses, both at work at the same time, each on its own queue and ledger: so other load
    on the machine, by which rates differ more than by metrics, is the same for both. By the clock,
    it would be scraped the more often for a job the busier the machine is with other things. Who
    scrapes is not counted."""
    rows = {
        False: Row("without metrics", "µs/job"),
        True: Row("with metrics, scraped each second of CPU", "µs/job"),
    }
    command = with_switchyard.worker_command(SLOTS)
    for number in range(rounds):
        port = str(free_port())
        begun: dict[bool, Callable[[], float]] = {}
        for has_metrics in rows:
            shown = {"JOBS_METRICS_PORT": port} if has_metrics else {}
            settings = stage.switchyard("metrics")
            samples = stage.directory / f"samples-{has_metrics}"
            env = environment("", samples, **settings, **shown)
            run_json(module_command("with_switchyard", "publish", count), env)
            work = partial(cpu_of_jobs, command, env, count)
            begun[has_metrics] = partial(work, partial(_scrape, port)) if has_metrics else work
        # They start one after the other: they take turns.
        order = sorted(begun, reverse=bool(number % 2))
        with ThreadPoolExecutor(len(order)) as threads:
            measured = {each: threads.submit(begun[each]) for each in order}
        for each, found in measured.items():
            rows[each].rounds.append(found.result())
    rows[True].ratio = statistics.median(
        with_it / without
        for with_it, without in zip(rows[True].rounds, rows[False].rounds, strict=True)
    )
    rows[True].target = "at most 1.02 ×"
    return list(rows.values())


def _scrape(port: str) -> None:
    """Ask for the metrics, as Prometheus does."""
    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()


def hot_latency(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Hot jobs while `count` backfill jobs of 50 ms saturate 8 slots: publish to start, p99."""
    rows = [
        Row("switchyard, one reserved slot, p50", "ms"),
        Row("switchyard, one reserved slot, p99", "ms", target="under 10 ms"),
        Row("celery, 8 threads, priorities, prefetch 1, p50", "ms"),
        Row("celery, 8 threads, priorities, prefetch 1, p99", "ms"),
    ]
    for _ in range(rounds):
        file = stage.directory / "latencies"
        ours = stage.switchyard("latency")
        env = environment("", BENCH_LATENCIES=str(file), **ours)
        worker = with_switchyard.worker_command(8, "hot,backfill")
        collect(rows[:2], file, worker, module_command("saturate", "switchyard", count), env)
        env = environment(
            stage.vhost("peers"),
            BENCH_LATENCIES=str(file),
            BENCH_PREFETCH="1",
            BENCH_ACKS_LATE="1",
        )
        module = __import__("benchmarks.contenders.with_celery", fromlist=["worker_command"])
        worker = module.worker_command("threads", 8)
        collect(rows[2:], file, worker, module_command("saturate", "celery", count), env)
    return rows


def collect(
    rows: list[Row], file: Path, worker: list[str], driver: list[str], env: dict[str, str]
) -> None:
    """Run a worker, and a driver that publishes hot jobs: p50 and p99 of their latencies."""
    file.unlink(missing_ok=True)
    with _running(worker, env):
        sent = int(run_json(driver, env)["hot"])
        deadline = time.monotonic() + 60
        while len(times := file.read_text().splitlines() if file.exists() else []) < sent:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(times)} of {sent} hot jobs ran")
            time.sleep(0.1)
    # The first ones find the worker still starting, or its backfill jobs.
    values = sorted(float(line) * 1000 for line in times[10:])
    rows[0].rounds.append(values[len(values) // 2])
    rows[1].rounds.append(values[math.ceil(len(values) * 0.99) - 1])


@contextmanager
def _running(command: list[str], env: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        end_group(process)


def backlog(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Does the work per job grow with what waits? 1,000 waiting against `count`."""
    rows = [
        Row("1,000 waiting, CPU of the worker", "µs/job"),
        Row(f"{count:,} waiting, CPU of the worker", "µs/job", target="within 15 %"),
    ]
    for _ in range(rounds):
        for row, waiting in zip(rows, (1_000, count), strict=True):
            settings = stage.switchyard("backlog")
            env = environment("", stage.directory / "samples", **settings)
            run_json(module_command("with_switchyard", "publish", waiting), env)
            answer = run_json(module_command("first_jobs", 1_000), env)
            row.rounds.append(answer["cpu_us"])
    rows[1].ratio = rows[1].median / rows[0].median
    return rows


Measurement = Callable[[Stage, int, int], list[Row]]

ALL: dict[str, tuple[Measurement, int, int]] = {
    "publish": (publish, 3, 20_000),
    "consume": (consume, 3, 20_000),
    "progress": (progress, 5, 20_000),
    "metrics-cost": (metrics_cost, 5, 20_000),
    "hot": (hot_latency, 2, 2_000),
    "backlog": (backlog, 3, 100_000),
}
"""Name → measurement, rounds, jobs."""
