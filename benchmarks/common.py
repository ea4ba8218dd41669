"""What contenders and measurements share: the job, the samples, processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAYLOAD_BYTES = 1024
WINDOW = 500
SAMPLE_EVERY = 50
"""One job in so many writes down when it ran: often enough, and next to free."""

URL = "BENCH_AMQP_URL"
SAMPLES = "BENCH_SAMPLES"


def payload(number: int) -> dict[str, object]:
    """The argument of job `number`: about 1 KB as JSON."""
    return {"number": number, "pad": "x" * (PAYLOAD_BYTES - 40)}


def sample(number: int) -> None:
    """Write down that job `number` ran now. Called by each contender's no-op job."""
    if number % SAMPLE_EVERY == 0:
        line = f"{number} {time.time():.6f}\n".encode()
        with open(os.environ[SAMPLES], "ab", buffering=0) as file:
            file.write(line)


def read_samples(path: Path) -> dict[int, float]:
    """Job number → time at which it ran, seconds since the epoch."""
    if not path.exists():
        return {}
    lines = path.read_text().split("\n")[:-1]
    return {int(number): float(at) for number, at in (line.split() for line in lines)}


def module_command(name: str, *arguments: object) -> list[str]:
    """The command line of a contender's module."""
    return [sys.executable, "-m", f"benchmarks.contenders.{name}", *map(str, arguments)]


def environment(url: str, samples: Path | None = None, /, **more: str) -> dict[str, str]:
    """Environment of a contender's process."""
    values = {**os.environ, URL: url, **more}
    if samples is not None:
        values[SAMPLES] = str(samples)
    return values


def resident_memory(what: str = "VmRSS", of: int | str = "self") -> float:
    """MB that a process has in memory now (`VmRSS`), or had at most so far (`VmHWM`; proc(5)).

    Not `ru_maxrss`, which is at least that of the process that started this one.
    """
    told = Path(f"/proc/{of}/status").read_text().partition(f"{what}:")[2]
    return int(told.split()[0]) * 1024 / 1e6


def run_json(
    command: Sequence[str], env: Mapping[str, str], timeout: float = 300
) -> dict[str, Any]:
    """Run a process to its end; its last line of output is JSON."""
    done = subprocess.run(
        command, env=dict(env), capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def drained_rate(
    command: Sequence[str], env: Mapping[str, str], count: int, timeout: float = 180
) -> float:
    """Start a worker on a queue that holds `count` jobs; jobs per second from first to last.

    Starting up is not counted. The worker is ended when it has run all of them.
    """
    path = Path(env[SAMPLES])
    path.unlink(missing_ok=True)
    log = path.with_suffix(".log")
    expected = len(range(0, count, SAMPLE_EVERY))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True
        )
        try:
            deadline = time.monotonic() + timeout
            while len(found := read_samples(path)) < expected:
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(
                        f"{' '.join(command)}: {len(found)} of {expected} samples\n{tail}"
                    )
                time.sleep(0.05)
        finally:
            end_group(process)
    times = sorted(found.values())
    return (expected - 1) * SAMPLE_EVERY / (times[-1] - times[0])


COUNTED = (0.2, 0.9)
"""Of the jobs, those that `cpu_of_jobs` counts: neither the start nor the last few."""


def cpu_of_jobs(
    command: Sequence[str],
    env: Mapping[str, str],
    count: int,
    each_second: Callable[[], None] = lambda: None,
) -> float:
    """Start a worker on a queue that holds `count` jobs: its CPU time for each, in µs. Calls
    `each_second` for every second of CPU that it uses once jobs run."""
    path = Path(env[SAMPLES])
    path.unlink(missing_ok=True)
    output = path.with_suffix(".log").open("wb")
    with output:
        process = subprocess.Popen(
            command, env=dict(env), stdout=output, stderr=output, start_new_session=True
        )
        try:
            first, began = _at_job(process, path, count * COUNTED[0], each_second)
            last, ended = _at_job(process, path, count * COUNTED[1], each_second)
        finally:
            end_group(process)
    return (ended - began) / (last - first) * 1e6


def _at_job(
    process: subprocess.Popen[bytes],
    path: Path,
    number: float,
    each_second: Callable[[], None],
    timeout: float = 180,
) -> tuple[int, float]:
    """Once so many jobs have run: how many, and the seconds of CPU that the process has used."""
    deadline = time.monotonic() + timeout
    used = _cpu_of(process)
    while (ran := len(read_samples(path)) * SAMPLE_EVERY) < number:
        if process.poll() is not None or time.monotonic() > deadline:
            tail = path.with_suffix(".log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{ran} jobs of {number:,.0f} ran\n{tail}")
        time.sleep(0.02)
        before, used = used, _cpu_of(process)
        if ran and int(used) > int(before):
            each_second()
    return ran, _cpu_of(process)


def _cpu_of(process: subprocess.Popen[bytes]) -> float:
    """Seconds, of all threads that it has and had."""
    # What clock_getcpuclockid(3) makes of a process id: Linux has a clock for each, to the
    # nanosecond, where `ps` tells hundredths of a second.
    return time.clock_gettime((~process.pid << 3) | 2)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children."""
    for signal_number in (15, 9):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(8)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        else:
            break
    process.wait(5)
