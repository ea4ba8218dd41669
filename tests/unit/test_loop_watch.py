import asyncio
import subprocess
import sys
import threading
import time
from types import FrameType

import pytest

from switchyard.services.common.thread_stack import stack_of
from switchyard.services.engine.monitoring import loop_watch
from switchyard.services.engine.monitoring.loop_watch import (
    BLOCKED_AFTER,
    IDLE_TICK_INTERVAL,
    TICK_INTERVAL,
    LoopWatch,
)
from switchyard.services.engine.records.results import LoopBlock
from tests.support.eventually import eventually

STACKS_PROGRAM = """
import gc, threading, time

from switchyard.services.common.thread_stack import stack_of


class Odd:
    def __init__(self):
        self.itself = self  # a cycle, which only a collection frees

    def __del__(self):
        time.sleep(0.0001)  # lets another thread run


def look():
    while not done.is_set():
        Odd()
        assert stack_of(main)


main, done = threading.get_ident(), threading.Event()
looking = threading.Thread(target=look, daemon=True)
gc.set_threshold(1)
looking.start()
for _ in range(300):
    other = threading.Thread(target=int)
    other.start()
    other.join()
done.set()
looking.join()
assert gc.isenabled()
print("went on")
"""


def test_reading_stacks_does_not_keep_other_threads_from_starting() -> None:
    result = subprocess.run(
        [sys.executable, "-c", STACKS_PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "went on\n"), result.stderr


def test_the_stack_of_a_thread_starts_with_its_innermost_frame() -> None:
    may_end, is_running = threading.Event(), threading.Event()

    def outer() -> None:
        inner()

    def inner() -> None:
        is_running.set()
        may_end.wait()

    thread = threading.Thread(target=outer)
    thread.start()
    is_running.wait()
    names = [frame.f_code.co_name for frame in stack_of(thread.ident or 0)]
    may_end.set()
    thread.join()
    assert names[names.index("inner") :] == [
        "inner",
        "outer",
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]
    assert stack_of(thread.ident or 0) == []
    assert stack_of(threading.get_ident())[0].f_code.co_name == "stack_of"


async def test_the_stack_of_a_busy_loop_holds_frames_only() -> None:
    """When `f_back` was followed in Python, one stack in thousands of tests held a dict."""
    loop_thread = threading.get_ident()

    def read_stacks() -> list[object]:
        return [each for _ in range(2_000) for each in stack_of(loop_thread)]

    async def await_deeply(levels: int) -> None:
        if levels:
            await await_deeply(levels - 1)
        else:
            await asyncio.sleep(0)

    reading = asyncio.create_task(asyncio.to_thread(read_stacks))
    while not reading.done():
        await await_deeply(30)
    assert {type(each) for each in await reading} == {FrameType}


@pytest.fixture
def stack_reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times at which the watch read the loop's stack."""
    times: list[float] = []

    def record_read(thread: int) -> list[FrameType]:
        times.append(time.monotonic())
        return stack_of(thread)

    monkeypatch.setattr(loop_watch, "stack_of", record_read)
    return times


async def test_an_idle_loop_is_watched_rarely_but_a_block_is_found(
    stack_reads: list[float],
) -> None:
    blocks: list[LoopBlock] = []

    async def record_block(block: LoopBlock) -> None:
        blocks.append(block)

    async with LoopWatch("worker-1", record_block).watching():
        await eventually(lambda: stack_reads)
        await eventually(lambda: len(stack_reads) > 1)
        # Right after one reading, when the next one is furthest away.
        time.sleep(BLOCKED_AFTER + TICK_INTERVAL + 0.1)  # noqa: ASYNC251
        await eventually(lambda: blocks)
    assert stack_reads[1] - stack_reads[0] > IDLE_TICK_INTERVAL - 0.01
    (block,) = blocks
    assert block.ended
    assert BLOCKED_AFTER + TICK_INTERVAL < block.seconds < BLOCKED_AFTER + TICK_INTERVAL + 1
    assert __name__.rpartition(".")[2] in block.place
