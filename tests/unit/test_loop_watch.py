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

SCRIPT = """
import gc, threading, time

from switchyard.services.common.thread_stack import stack_of


class Odd:
    def __init__(self):
        self.itself = self  # garbage that only a collection finds

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


def test_whoever_looks_at_a_thread_does_not_stop_those_that_start_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


def test_the_stack_of_a_thread_begins_with_what_runs_and_ends_where_it_began() -> None:
    waits, reached = threading.Event(), threading.Event()

    def outer() -> None:
        inner()

    def inner() -> None:
        reached.set()
        waits.wait()

    thread = threading.Thread(target=outer)
    thread.start()
    reached.wait()
    names = [frame.f_code.co_name for frame in stack_of(thread.ident or 0)]
    waits.set()
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


async def test_a_loop_that_runs_coroutines_shows_frames_alone() -> None:
    """Walked along `f_back` in Python, a stack had a dict in it, once in thousands of tests."""
    loop_thread = threading.get_ident()

    def look() -> list[object]:
        return [each for _ in range(2_000) for each in stack_of(loop_thread)]

    async def deep(levels: int) -> None:
        if levels:
            await deep(levels - 1)
        else:
            await asyncio.sleep(0)

    looking = asyncio.create_task(asyncio.to_thread(look))
    while not looking.done():
        await deep(30)
    assert {type(each) for each in await looking} == {FrameType}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the watch looked at the loop."""
    times: list[float] = []

    def look(thread: int) -> list[FrameType]:
        times.append(time.monotonic())
        return stack_of(thread)

    monkeypatch.setattr(loop_watch, "stack_of", look)
    return times


async def test_a_loop_that_waits_is_looked_at_rarely_and_a_block_is_seen_all_the_same(
    looks: list[float],
) -> None:
    noted: list[LoopBlock] = []

    async def note(block: LoopBlock) -> None:
        noted.append(block)

    async with LoopWatch("worker-1", note).watching():
        await eventually(lambda: looks)
        await eventually(lambda: len(looks) > 1)
        # Directly behind a look, when the next one is as far away as can be.
        time.sleep(BLOCKED_AFTER + TICK_INTERVAL + 0.1)  # noqa: ASYNC251
        await eventually(lambda: noted)
    assert looks[1] - looks[0] > IDLE_TICK_INTERVAL - 0.01
    (block,) = noted
    assert block.ended
    assert BLOCKED_AFTER + TICK_INTERVAL < block.seconds < BLOCKED_AFTER + TICK_INTERVAL + 1
    assert __name__.rpartition(".")[2] in block.place
