"""The pool's processes: what a job leaves behind harms no other, and none outlives the worker."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from switchyard.broker.message import JobMessage, Metadata
from switchyard.services.common.process_memory import process_memory
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext, ProcessCrashed, in_thread
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.runtime import process_pool
from switchyard.services.engine.runtime.execution import SHORT_TEXT_LENGTH, Executor
from tests.support.eventually import eventually

REGISTRY = Registry.load(["tests.support.jobs"])


@pytest.fixture
async def executor() -> AsyncIterator[Executor]:
    opened = Executor(processes=1)
    yield opened
    await opened.close()


async def crunch(executor: Executor, do: str) -> Any:
    job_type = REGISTRY.get("crunched")
    payload = {"do": do, "n": 21}
    message = JobMessage(job_type="crunched", payload=payload, metadata=Metadata())
    ctx = JobContext(message, "hot", "test", Settings())
    return await executor.run(job_type, job_type.validate(payload), ctx)


async def test_a_process_that_met_its_limit_has_no_other_job(executor: Executor) -> None:
    first_result = await crunch(executor, "pid")
    failed = await crunch(executor, "allocate")
    assert isinstance(failed, Failure)
    assert (failed.error_type, failed.permanent, failed.crashed) == ("MemoryError", False, False)
    assert "768 MiB" in failed.message
    later_result = await crunch(executor, "pid")
    assert later_result != first_result
    assert executor.pids == [later_result.result["pid"]]
    own_memory, total_memory = process_memory(), process_memory(executor.pids)
    assert own_memory is not None
    assert total_memory is not None
    assert total_memory > own_memory


async def test_sixteen_jobs_after_one_that_left_no_memory_all_succeed(executor: Executor) -> None:
    hoarder = await crunch(executor, "hoard")
    later_results = [await crunch(executor, "pid") for _ in range(16)]
    assert all(isinstance(result, Done) for result in later_results)
    assert hoarder not in later_results
    assert (
        len({result.result["pid"] for result in later_results}) == 1
    )  # one new process, kept for all


async def test_a_job_that_lacks_memory_because_of_an_earlier_one_runs_in_a_fresh_process(
    executor: Executor,
) -> None:
    """Each of these jobs fits into the limit alone, but not after another."""
    await crunch(executor, "pid")
    pids = {(await crunch(executor, "hoard")).result["pid"] for _ in range(3)}
    assert len(pids) == 3


def measure(text: str) -> tuple[int, int]:
    return len(text), os.getpid()


def spin(text: str) -> None:
    while True:
        pass


async def test_work_on_a_long_text_is_done_in_a_process_and_ends_with_the_job(
    executor: Executor,
) -> None:
    short = await executor.compute(measure, "x", characters=1)
    assert short == (1, os.getpid())
    long = "x" * (SHORT_TEXT_LENGTH + 1)
    size, pid = await executor.compute(measure, long, characters=len(long))
    assert size == len(long)
    assert pid != os.getpid()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(executor.compute(spin, long, characters=len(long)), 0.5)
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


def list_open_files() -> list[str]:
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing
            targets.append(os.readlink(descriptor))
    return targets


linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere each process is started, not forked"
)


@linux
async def test_processes_are_forks_of_one_that_has_no_open_files_of_the_worker(
    executor: Executor, tmp_path: Path
) -> None:
    """Neither a socket nor a file, not even inheritable ones."""
    secret = tmp_path / "secret"
    with socket.create_server(("127.0.0.1", 0)) as server, secret.open("w") as file:
        for opened in (server, file):
            os.set_inheritable(opened.fileno(), True)
        server_socket = os.readlink(f"/proc/self/fd/{server.fileno()}")
        fork_server = await executor.in_process(os.getppid, timeout=30, memory_limit_mb=512)
        open_files = await executor.in_process(list_open_files, timeout=30, memory_limit_mb=512)
    assert fork_server != os.getpid()
    assert open_files
    assert not {server_socket, str(secret)} & set(open_files)


@linux
async def test_jobs_run_again_after_the_fork_server_was_killed(
    executor: Executor,
) -> None:
    fork_server = await executor.in_process(os.getppid, timeout=30, memory_limit_mb=512)
    child = (await crunch(executor, "pid")).result["pid"]
    ticks_before = count_ticks(child)
    spinning = asyncio.create_task(crunch(executor, "spin"))
    await eventually(lambda: count_ticks(child) > ticks_before + 10)
    os.kill(fork_server, signal.SIGKILL)
    failed = await spinning
    assert isinstance(failed, Failure)
    assert (failed.error_type, failed.crashed) == ("ProcessCrashed", True)
    # The system kills the child as its parent dies, maybe a moment after we noticed that.
    await eventually(lambda: not is_running(child))
    assert isinstance(await crunch(executor, "pid"), Done)


def die(kind: str) -> None:
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


async def test_each_death_is_reported_to_the_caller_of_the_dead_process() -> None:
    """At once, however many die beside processes that live."""
    executor = Executor(processes=3)

    async def run_and_describe(kind: str) -> str:
        try:
            work = measure if kind == "alive" else die
            await executor.in_process(work, kind, timeout=60, memory_limit_mb=1024)
        except ProcessCrashed as error:
            return str(error)
        return kind

    try:
        async with asyncio.timeout(60):
            kinds = ["alive", "killed", "ended"] * 2
            outcomes = await asyncio.gather(*map(run_and_describe, kinds))
    finally:
        await executor.close()
    killed = "the process of die was killed by SIGKILL, as the kernel does where memory is short"
    assert outcomes == ["alive", killed, "the process of die ended with exit code 7"] * 2


async def test_closing_kills_all_running_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the callers of processes that are dead already are being told."""
    executor = Executor(processes=3)
    running = [
        asyncio.create_task(
            executor.in_process(spin_after, tmp_path / name, timeout=60, memory_limit_mb=1024)
        )
        for name in ("one", "two", "three")
    ]
    await eventually(lambda: len(list(tmp_path.iterdir())) == 3)

    async def run_and_wait_for_deaths(work: Callable[..., Any], *args: Any) -> Any:
        result = await in_thread(work, *args)
        if work.__name__ == "kill":
            await eventually(lambda: any(task.done() for task in running))
        return result

    monkeypatch.setattr(process_pool, "in_thread", run_and_wait_for_deaths)
    async with asyncio.timeout(20):
        await executor.close()
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert [type(error) for error in ended] == [ProcessCrashed] * 3


def spin_after(path: Path) -> None:
    path.touch()
    spin("")


def die_before_a_child() -> None:
    """Die, and leave a child that holds all files that were open here."""
    if os.fork() == 0:
        time.sleep(25)  # longer than the test waits, but not for ever
    os._exit(7)


@linux
async def test_a_process_that_its_own_child_outlives_is_reported_as_dead(
    executor: Executor,
) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(ProcessCrashed, match="exit code 7"):
            await executor.in_process(die_before_a_child, timeout=60, memory_limit_mb=1024)


async def test_a_process_is_replaced_after_so_many_jobs(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.engine.runtime.process_pool.CALLS_PER_PROCESS", 2)
    pids = [(await crunch(executor, "pid")).result["pid"] for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    await eventually(lambda: not Path(f"/proc/{pids[0]}").exists())


async def test_a_job_that_is_cancelled_while_a_process_starts_costs_no_later_one(
    executor: Executor,
) -> None:
    waiting = asyncio.create_task(crunch(executor, "pid"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert isinstance(await crunch(executor, "pid"), Done)


PARENT_SCRIPT = """
import asyncio, sys
from tests.integration.test_processes import crunch
from switchyard.services.engine.runtime.execution import Executor

async def main():
    executor = Executor(processes=1)
    print((await crunch(executor, "pid")).result["pid"], flush=True)
    await asyncio.gather(*[crunch(executor, "spin") for _ in range(4)])

if __name__ == "__main__":
    asyncio.run(main())
"""


@linux
def test_a_job_ends_with_the_worker_that_is_killed(tmp_path: Path) -> None:
    """So do the jobs that were queued behind it."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT_SCRIPT)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        ticks_before = count_ticks(child)
        wait_until(lambda: count_ticks(child) > ticks_before + 10)  # it spins
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        wait_until(lambda: not is_running(child))


def wait_until(is_met: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not is_met():
        assert time.monotonic() < deadline
        os.sched_yield()


def count_ticks(pid: int) -> int:
    """Return the processor time that a process has had, in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().split()[13])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
