"""Bulk work gives way to hot jobs: its turns, with a simulated ledger and clock."""

import pytest

from switchyard.services.engine.bulk.hot_traffic import (
    JOBS_PER_STEP,
    MAX_STEP_SECONDS,
    PAUSE_RATIO,
    HotTraffic,
)


class FakeWorkers:
    """Returns for how many seconds no worker has taken a hot job, and counts the queries."""

    idle: float | None = None
    queries = 0

    async def hot_idle(self) -> float | None:
        self.queries += 1
        return self.idle


class Paused(Exception):
    pass


class BulkWork:
    """Bulk work with a simulated clock, which its steps and waits put forward."""

    def __init__(self, idle: float | None) -> None:
        self.now = 0.0
        self.workers = FakeWorkers()
        self.workers.idle = idle
        self.traffic = HotTraffic(self.workers, clock=lambda: self.now)  # type: ignore[arg-type]
        self.is_paused = False

    async def sleep(self, seconds: float) -> None:
        """Wait in place of the bulk session's `sleep`."""
        if self.is_paused:
            raise Paused
        self.now += seconds

    async def step(self, seconds: float) -> float:
        """Run a step of so many seconds, and return when it began."""
        async with self.traffic.turn(self):
            began = self.now
            self.now += seconds
        return began


@pytest.mark.parametrize(
    ("idle", "room"), [(None, 500), (0.0, JOBS_PER_STEP), (4.0, JOBS_PER_STEP), (6.0, 500)]
)
async def test_steps_are_small_while_hot_jobs_come_in(idle: float | None, room: int) -> None:
    traffic = BulkWork(idle).traffic
    assert await traffic.allowance(500) == room
    assert await traffic.allowance(3) == 3
    assert (traffic.why is None) == (room == 500)


async def test_the_ledger_is_queried_twice_a_second() -> None:
    work = BulkWork(None)
    for _ in range(100):
        await work.traffic.allowance(500)
        work.now += 0.01
    assert work.workers.queries == 2


async def test_the_rest_after_a_step_is_proportional_to_its_length() -> None:
    work = BulkWork(0.0)
    assert [await work.step(seconds) for seconds in (0.2, 0.1, 0.05, 0)] == pytest.approx(
        [0, 1, 1.5, 1.75]
    )


async def test_a_very_long_step_counts_as_the_maximum() -> None:
    work = BulkWork(0.0)
    assert [await work.step(seconds) for seconds in (60, 1)] == [
        0,
        60 + PAUSE_RATIO * MAX_STEP_SECONDS,
    ]


async def test_several_operations_together_take_the_share_of_one() -> None:
    work = BulkWork(0.0)
    turns = [work.traffic.turn(work) for _ in range(3)]
    await work.step(0.1)
    begin_times = []
    for turn in turns:
        work.now = 0.1  # all ask for their turn at the same time
        await turn.__aenter__()
        begin_times.append(work.now)
    assert begin_times == pytest.approx([0.5, 1, 1.5])


async def test_without_hot_jobs_there_is_no_wait_for_a_turn() -> None:
    work = BulkWork(None)
    assert [await work.step(1) for _ in range(3)] == [0, 1, 2]


async def test_an_operation_paused_while_waiting_holds_up_no_other() -> None:
    work = BulkWork(0.0)
    await work.step(0.1)
    work.is_paused = True
    with pytest.raises(Paused):
        await work.step(0.1)
    work.is_paused = False
    assert await work.step(0.1) == pytest.approx(0.5)


async def test_a_wait_ends_when_no_more_hot_jobs_come_in() -> None:
    work = BulkWork(0.0)
    await work.step(0.25)
    work.workers.idle = 60.0
    assert await work.step(0.1) == 0.75  # not 1.25, when its turn would have begun


async def test_an_old_reason_for_slowness_is_not_shown() -> None:
    work = BulkWork(0.0)
    await work.traffic.allowance(500)
    assert work.traffic.why == "slow: hot jobs come in"
    work.now += 10
    assert work.traffic.why is None
