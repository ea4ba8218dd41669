import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from switchyard.broker.task_supervisor import VITAL_TRIES, BackgroundFailed, TaskSupervisor
from tests.support.eventually import MAX_WAIT


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.broker.task_supervisor.FIRST_PAUSE", 0.0)


def new() -> TaskSupervisor:
    return TaskSupervisor(structlog.get_logger("test"))


@pytest.mark.parametrize(
    "end",
    [ValueError("a bug"), asyncio.CancelledError(), None],
    ids=["raises", "cancelled", "ends"],
)
async def test_a_task_that_ends_is_told_and_started_again(end: Any, at_once: None) -> None:
    lives = 0
    alive = asyncio.Event()

    async def work() -> None:
        nonlocal lives
        lives += 1
        if lives < 5:
            if end is not None:
                raise end
            return
        alive.set()
        await asyncio.Event().wait()

    background = new()
    with capture_logs() as logs:
        background.start("work", work)
        await asyncio.wait_for(alive.wait(), MAX_WAIT)
        await background.close()
    assert lives == 5
    told = [(each["log_level"], each["task"], each["error"]) for each in logs]
    assert told == [("error", "work", "it returned" if end is None else repr(end))] * 4


async def test_a_vital_task_that_can_not_be_kept_running_ends_its_owner(at_once: None) -> None:
    lives = 0

    async def work() -> None:
        nonlocal lives
        lives += 1
        raise ValueError("a bug")

    background = new()
    background.start("beat", work, vital=True)
    with pytest.raises(BackgroundFailed, match=r"beat has failed 3 times.*a bug") as failed:
        await asyncio.wait_for(background.failed, MAX_WAIT)
    assert lives == VITAL_TRIES
    assert isinstance(failed.value.__cause__, ValueError)
    await background.close()


async def test_failures_long_ago_do_not_count(
    at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.broker.task_supervisor.BACKOFF_RESET_AFTER", 0.0)
    lives = 0
    enough = asyncio.Event()

    async def work() -> None:
        nonlocal lives
        lives += 1
        if lives > 2 * VITAL_TRIES:
            enough.set()
        raise ValueError("a bug")

    background = new()
    background.start("beat", work, vital=True)
    await asyncio.wait_for(enough.wait(), MAX_WAIT)
    assert not background.failed.done()
    await background.close()


async def test_tasks_end_with_their_owner() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    background = new()
    background.start("work", work)
    await asyncio.sleep(0)
    await background.close()
    assert ended.is_set()
