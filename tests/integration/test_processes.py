"""The pool's processes: what one job leaves behind costs no other, and none outlives its parent."""

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
    first = await crunch(executor, "pid")
    failed = await crunch(executor, "allocate")
    assert isinstance(failed, Failure)
    assert (failed.error_type, failed.permanent, failed.crashed) == ("MemoryError", False, False)
    assert "768 MiB" in failed.message
    after = await crunch(executor, "pid")
    assert after != first
    assert executor.pids == [after.result["pid"]]
    own, together = process_memory(), process_memory(executor.pids)
    assert own is not None
    assert together is not None
    assert together > own


async def test_sixteen_jobs_after_one_that_left_no_memory_all_succeed(executor: Executor) -> None:
    hoarder = await crunch(executor, "hoard")
    after = [await crunch(executor, "pid") for _ in range(16)]
    assert all(isinstance(each, Done) for each in after)
    assert hoarder not in after
    assert len({each.result["pid"] for each in after}) == 1  # replaced once, and kept


async def test_a_job_that_lacks_memory_for_its_predecessors_sake_is_run_in_a_fresh_process(
    executor: Executor,
) -> None:
    """Two of them fit into the limit one by one only."""
    await crunch(executor, "pid")
    pids = {(await crunch(executor, "hoard")).result["pid"] for _ in range(3)}
    assert len(pids) == 3


def size_of(text: str) -> tuple[int, int]:
    return len(text), os.getpid()


def spin(text: str) -> None:
    while True:
        pass


async def test_work_on_a_long_text_is_done_in_a_process_and_ends_with_the_job(
    executor: Executor,
) -> None:
    short = await executor.compute(size_of, "x", characters=1)
    assert short == (1, os.getpid())
    long = "x" * (SHORT_TEXT_LENGTH + 1)
    size, pid = await executor.compute(size_of, long, characters=len(long))
    assert size == len(long)
    assert pid != os.getpid()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(executor.compute(spin, long, characters=len(long)), 0.5)
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


def descriptors() -> list[str]:
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            found.append(os.readlink(each))
    return found


linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each starts by itself")


@linux
async def test_processes_are_forks_of_one_that_has_nothing_of_the_workers(
    executor: Executor, tmp_path: Path
) -> None:
    """Neither a socket nor a file, even of those that a program started by the worker would get."""
    secret = tmp_path / "secret"
    with socket.create_server(("127.0.0.1", 0)) as server, secret.open("w") as file:
        for each in (server, file):
            os.set_inheritable(each.fileno(), True)
        mine = os.readlink(f"/proc/self/fd/{server.fileno()}")
        forked_from = await executor.in_process(os.getppid, timeout=30, memory_limit_mb=512)
        held = await executor.in_process(descriptors, timeout=30, memory_limit_mb=512)
    assert forked_from != os.getpid()
    assert held
    assert not {mine, str(secret)} & set(held)


@linux
async def test_when_the_process_is_killed_that_others_are_forked_from_work_goes_on(
    executor: Executor,
) -> None:
    forked_from = await executor.in_process(os.getppid, timeout=30, memory_limit_mb=512)
    child = (await crunch(executor, "pid")).result["pid"]
    began = ticks(child)
    spinning = asyncio.create_task(crunch(executor, "spin"))
    await eventually(lambda: ticks(child) > began + 10)
    os.kill(forked_from, signal.SIGKILL)
    failed = await spinning
    assert isinstance(failed, Failure)
    assert (failed.error_type, failed.crashed) == ("ProcessCrashed", True)
    # The system kills it as its parent dies, maybe a moment after we have noticed that.
    await eventually(lambda: not is_running(child))
    assert isinstance(await crunch(executor, "pid"), Done)


def die(kind: str) -> None:
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


async def test_each_death_is_told_to_the_caller_of_the_one_that_died() -> None:
    """And at once, however many die beside those that live."""
    executor = Executor(processes=3)

    async def outcome(kind: str) -> str:
        try:
            work = size_of if kind == "alive" else die
            await executor.in_process(work, kind, timeout=60, memory_limit_mb=1024)
        except ProcessCrashed as error:
            return str(error)
        return kind

    try:
        async with asyncio.timeout(60):
            kinds = ["alive", "killed", "ended"] * 2
            outcomes = await asyncio.gather(*map(outcome, kinds))
    finally:
        await executor.close()
    killed = "the process of die was killed by SIGKILL, as the kernel does where memory is short"
    assert outcomes == ["alive", killed, "the process of die ended with exit code 7"] * 2


async def test_closing_kills_all_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the callers of those that are dead already are told of it."""
    executor = Executor(processes=3)
    running = [
        asyncio.create_task(
            executor.in_process(spin_after, tmp_path / name, timeout=60, memory_limit_mb=1024)
        )
        for name in ("one", "two", "three")
    ]
    await eventually(lambda: len(list(tmp_path.iterdir())) == 3)

    async def told_of_kills(work: Callable[..., Any], *args: Any) -> Any:
        result = await in_thread(work, *args)
        if work.__name__ == "kill":
            await eventually(lambda: any(each.done() for each in running))
        return result

    monkeypatch.setattr(process_pool, "in_thread", told_of_kills)
    async with asyncio.timeout(20):
        await executor.close()
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert [type(each) for each in ended] == [ProcessCrashed] * 3


def spin_after(path: Path) -> None:
    path.touch()
    spin("")


def die_before_a_child() -> None:
    """The child holds all that its parent had open."""
    if os.fork() == 0:
        time.sleep(25)  # longer than the test waits, and not for ever
    os._exit(7)


@linux
async def test_a_process_that_a_child_of_its_own_outlives_is_told_as_dead(
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


PARENT = """
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
    """Also those that were queued behind it."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        began = ticks(child)
        until(lambda: ticks(child) > began + 10)  # it spins
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        until(lambda: not is_running(child))


def until(holds: Callable[[], bool], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline
        os.sched_yield()


def ticks(pid: int) -> int:
    """Processor time that a process has had."""
    return int(Path(f"/proc/{pid}/stat").read_text().split()[13])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
