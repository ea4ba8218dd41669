"""`make bench ARGS=footprint`: what the system costs before there is any work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.common import end_group, environment, module_command, run_json
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.cli.system.free_ports import free_port

SETTLING = 20.0
"""Seconds from ready until a system counts as idle."""
IDLE = 60.0
"""Seconds for which an idle system is watched."""
START_TIMEOUT = 120.0
JOBCTL = (sys.executable, "-c", "from switchyard.cli.main import main; main()")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    """Processes that were started together, with all that these have started."""

    roots: Sequence[subprocess.Popen[bytes]]

    def pids(self) -> list[int]:
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
        found = [each.pid for each in self.roots]
        for parent in found:
            found += [pid for pid, of in parents.items() if of == parent]
        return found

    def processor_seconds(self) -> float:
        """What they and those that have ended have used so far."""
        fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2] for pid in self.pids())
        return sum(sum(map(int, each.split()[11:15])) for each in fields) / TICK

    def memory(self) -> float:
        """MB, each shared page counted once (PSS; proc(5))."""
        rollups = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.pids())
        return sum(int(each.partition("Pss:")[2].split()[0]) for each in rollups) * 1024 / 1e6


def footprint(stage: Stage, rounds: int, count: int) -> list[Row]:
    """What it costs while nothing happens: the whole system beside Celery's worker and Flower, a
    worker, and how long commands take to start, beside Python itself."""
    memory = Row("a worker after its first job", "MB", target="under 120 MB")
    command = "from switchyard.cli.main import main; main()"
    python = Row("python -c pass", "ms")
    start = Row("jobctl --help", "ms", target="under 300 ms")
    client = Row("from switchyard import Client", "ms")
    search = Row("jobctl search, of an API that is away", "ms", target="under 200 ms, or 10 ×")
    starts: tuple[tuple[Row, list[str]], ...] = (
        (python, ["pass"]),
        (start, [command, "--help"]),
        (client, ["from switchyard import Client"]),
        (search, [command, "search", "tide"]),
    )
    nowhere = environment("", JOBS_API_URL="http://127.0.0.1:9")
    for _ in range(rounds):
        settings = stage.switchyard("memory")
        env = environment("", stage.directory / "samples", **settings)
        run_json(module_command("with_switchyard", "publish", 50), env)
        memory.rounds.append(run_json(module_command("first_jobs", 50), env)["rss_mb"])
        for _ in range(5):
            for row, arguments in starts:
                started = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", *arguments],
                    env=nowhere,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                row.rounds.append((time.perf_counter() - started) * 1000)
    for row, _ in starts[1:]:
        row.ratio = row.median / python.median
    return [*_systems(stage, rounds), memory, python, start, client, search]


def _systems(stage: Stage, rounds: int) -> list[Row]:
    """Our system as `jobctl up` starts it, and Celery's worker with Flower, one after the other."""
    rows: list[Row] = []
    processes = 0
    for name, started in (("jobctl up", _switchyard), ("celery and flower", _celery)):
        ready = Row(f"{name}: started", "s", target="under 8 s" if not rows else "")
        used = Row(f"{name}: processor time until then", "s")
        idle = Row(
            f"{name}: idle, processor time a minute", "s", target="under 2 s" if not rows else ""
        )
        memory = Row(f"{name}: idle, memory (PSS)", "MB", target="under 350 MB" if not rows else "")
        count = Row(f"{name}: processes", "")
        for _ in range(rounds):
            began = time.monotonic()
            with started(stage, processes) as running:
                ready.rounds.append(time.monotonic() - began)
                used.rounds.append(running.processor_seconds())
                time.sleep(SETTLING)
                before = running.processor_seconds()
                time.sleep(IDLE)
                idle.rounds.append((running.processor_seconds() - before) * 60 / IDLE)
                memory.rounds.append(running.memory())
                processes = len(running.pids())
                count.rounds.append(processes)
        rows += [ready, used, idle, memory, count]
    for ours, theirs in zip(rows[:5], rows[5:], strict=True):
        ours.ratio = ours.median / theirs.median
    return rows


@contextmanager
def _switchyard(stage: Stage, _processes: int) -> Iterator[Running]:
    folder = stage.folder("up")
    settings = {
        "JOBS_AMQP_URL": stage.vhost(folder.name),
        "JOBS_MANAGEMENT_URL": stage.management_url,
        "JOBS_DATA_DIR": str(folder),
    }
    with start_processes([[*JOBCTL, "up", "--api-port", "0"]], folder, settings) as running:
        wait_until_ready(
            running, lambda: "Ctrl-C stops everything" in (folder / "log0").read_text()
        )
        yield running


@contextmanager
def _celery(stage: Stage, processes: int) -> Iterator[Running]:
    """As many processes as ours: the worker's first, Flower, and a pool of the rest."""
    folder = stage.folder("celery")
    port = free_port()
    celery = [sys.executable, "-m", "celery", "--broker", stage.vhost(folder.name)]
    pool = str(max(processes - 2, 1))
    commands = [
        [*celery, "worker", "--concurrency", pool, "--task-events", "--loglevel", "INFO"],
        [*celery, "flower", f"--port={port}", "--address=127.0.0.1"],
    ]

    def is_ready() -> bool:
        try:
            httpx.get(f"http://127.0.0.1:{port}/").raise_for_status()
        except httpx.HTTPError:
            return False
        return " ready." in (folder / "log0").read_text()

    with start_processes(commands, folder, {}) as running:
        wait_until_ready(running, is_ready)
        yield running


@contextmanager
def start_processes(
    commands: Sequence[Sequence[str]], folder: Path, settings: dict[str, str]
) -> Iterator[Running]:
    """Start processes; end them and theirs."""
    with ExitStack() as stack:
        roots = []
        for number, command in enumerate(commands):
            log = stack.enter_context((folder / f"log{number}").open("wb"))
            process = subprocess.Popen(
                command,
                env=environment("", **settings),
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(end_group, process)
            roots.append(process)
        yield Running(roots)


def wait_until_ready(running: Running, is_ready: Callable[[], bool]) -> None:
    """Raises RuntimeError where it takes longer than START_TIMEOUT, or a process has ended."""
    deadline = time.monotonic() + START_TIMEOUT
    while not is_ready():
        if time.monotonic() > deadline or any(each.poll() is not None for each in running.roots):
            raise RuntimeError(f"{running.roots[0].args!r} does not start")
        time.sleep(0.05)


ALL: dict[str, tuple[Measurement, int, int]] = {"footprint": (footprint, 1, 50)}
"""Name → measurement, rounds, jobs."""
