import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from switchyard.broker.task_supervisor import VITAL_TRIES, BackgroundFailed, TaskSupervisor
from tests.support.eventually import MAX_WAIT


@pytest.fixture
def no_restart_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.broker.task_supervisor.FIRST_PAUSE", 0.0)


def new_supervisor() -> TaskSupervisor:
    return TaskSupervisor(structlog.get_logger("test"))


@pytest.mark.parametrize(
    "end",
    [ValueError("a bug"), asyncio.CancelledError(), None],
    ids=["raises", "cancelled", "ends"],
)
async def test_a_task_that_ends_is_logged_and_restarted(end: Any, no_restart_delay: None) -> None:
    starts = 0
    running = asyncio.Event()

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts < 5:
            if end is not None:
                raise end
            return
        running.set()
        await asyncio.Event().wait()

    supervisor = new_supervisor()
    with capture_logs() as logs:
        supervisor.start("work", work)
        await asyncio.wait_for(running.wait(), MAX_WAIT)
        await supervisor.close()
    assert starts == 5
    log_entries = [(each["log_level"], each["task"], each["error"]) for each in logs]
    assert log_entries == [("error", "work", "it returned" if end is None else repr(end))] * 4


async def test_a_vital_task_that_can_not_be_kept_running_ends_its_owner(
    no_restart_delay: None,
) -> None:
    starts = 0

    async def work() -> None:
        nonlocal starts
        starts += 1
        raise ValueError("a bug")

    supervisor = new_supervisor()
    supervisor.start("beat", work, vital=True)
    with pytest.raises(BackgroundFailed, match=r"beat has failed 3 times.*a bug") as failed:
        await asyncio.wait_for(supervisor.failed, MAX_WAIT)
    assert starts == VITAL_TRIES
    assert isinstance(failed.value.__cause__, ValueError)
    await supervisor.close()


async def test_failures_of_long_ago_do_not_end_the_owner(
    no_restart_delay: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.broker.task_supervisor.BACKOFF_RESET_AFTER", 0.0)
    starts = 0
    restarted_often = asyncio.Event()

    async def work() -> None:
        nonlocal starts
        starts += 1
        if starts > 2 * VITAL_TRIES:
            restarted_often.set()
        raise ValueError("a bug")

    supervisor = new_supervisor()
    supervisor.start("beat", work, vital=True)
    await asyncio.wait_for(restarted_often.wait(), MAX_WAIT)
    assert not supervisor.failed.done()
    await supervisor.close()


async def test_tasks_end_with_their_owner() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    supervisor = new_supervisor()
    supervisor.start("work", work)
    await asyncio.sleep(0)
    await supervisor.close()
    assert ended.is_set()
