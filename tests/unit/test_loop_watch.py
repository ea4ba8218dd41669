import subprocess
import sys
import time
from types import FrameType

import pytest

from switchyard.services.engine.monitoring import loop_watch
from switchyard.services.engine.monitoring.loop_watch import (
    BLOCKED_AFTER,
    IDLE_TICK_INTERVAL,
    TICK_INTERVAL,
    LoopWatch,
    frame_of,
)
from switchyard.services.engine.records.results import LoopBlock
from tests.support.eventually import eventually

SCRIPT = """
import gc, threading, time

from switchyard.services.engine.monitoring.loop_watch import frame_of


class Odd:
    def __init__(self):
        self.itself = self  # garbage that only a collection finds

    def __del__(self):
        time.sleep(0.0001)  # lets another thread run


def look():
    while not done.is_set():
        Odd()
        assert frame_of(main) is not None


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


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the watch looked at the loop."""
    times: list[float] = []

    def frame(thread: int) -> FrameType | None:
        times.append(time.monotonic())
        return frame_of(thread)

    monkeypatch.setattr(loop_watch, "frame_of", frame)
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
