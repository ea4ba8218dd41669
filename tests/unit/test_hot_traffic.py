"""Giving way to hot jobs: the turns of bulk work, with a ledger that a test sets."""

import pytest

from switchyard.services.engine.bulk.hot_traffic import (
    JOBS_PER_STEP,
    MAX_STEP_SECONDS,
    PAUSE_RATIO,
    HotTraffic,
)


class Workers:
    """Says how long no worker has taken a hot job, and counts how often it was asked."""

    idle: float | None = None
    asked = 0

    async def hot_idle(self) -> float | None:
        self.asked += 1
        return self.idle


class Paused(Exception):
    pass


class Work:
    """Bulk work by a clock of its own: for whom one waits, time passes."""

    def __init__(self, idle: float | None) -> None:
        self.now = 0.0
        self.workers = Workers()
        self.workers.idle = idle
        self.traffic = HotTraffic(self.workers, clock=lambda: self.now)  # type: ignore[arg-type]
        self.is_paused = False

    async def sleep(self, seconds: float) -> None:
        """Stands for the session's."""
        if self.is_paused:
            raise Paused
        self.now += seconds

    async def step(self, seconds: float) -> float:
        """A step of so many seconds; when it began."""
        async with self.traffic.turn(self):
            began = self.now
            self.now += seconds
        return began


@pytest.mark.parametrize(
    ("idle", "room"), [(None, 500), (0.0, JOBS_PER_STEP), (4.0, JOBS_PER_STEP), (6.0, 500)]
)
async def test_steps_are_small_while_hot_jobs_come_in(idle: float | None, room: int) -> None:
    traffic = Work(idle).traffic
    assert await traffic.allowance(500) == room
    assert await traffic.allowance(3) == 3
    assert (traffic.why is None) == (room == 500)


async def test_the_ledger_is_asked_twice_a_second() -> None:
    work = Work(None)
    for _ in range(100):
        await work.traffic.allowance(500)
        work.now += 0.01
    assert work.workers.asked == 2


async def test_after_each_step_bulk_work_rests_by_how_long_it_took() -> None:
    work = Work(0.0)
    assert [await work.step(seconds) for seconds in (0.2, 0.1, 0.05, 0)] == pytest.approx(
        [0, 1, 1.5, 1.75]
    )


async def test_a_step_that_had_to_wait_itself_is_no_measure() -> None:
    work = Work(0.0)
    assert [await work.step(seconds) for seconds in (60, 1)] == [
        0,
        60 + PAUSE_RATIO * MAX_STEP_SECONDS,
    ]


async def test_several_operations_together_take_no_more_of_the_time_than_one() -> None:
    work = Work(0.0)
    turns = [work.traffic.turn(work) for _ in range(3)]
    await work.step(0.1)
    begins = []
    for turn in turns:
        work.now = 0.1  # all of them ask at once
        await turn.__aenter__()
        begins.append(work.now)
    assert begins == pytest.approx([0.5, 1, 1.5])


async def test_without_hot_jobs_nobody_waits_for_a_turn() -> None:
    work = Work(None)
    assert [await work.step(1) for _ in range(3)] == [0, 1, 2]


async def test_who_is_paused_while_waiting_keeps_nobody_else() -> None:
    work = Work(0.0)
    await work.step(0.1)
    work.is_paused = True
    with pytest.raises(Paused):
        await work.step(0.1)
    work.is_paused = False
    assert await work.step(0.1) == pytest.approx(0.5)


async def test_who_waits_goes_on_when_no_more_hot_jobs_come_in() -> None:
    work = Work(0.0)
    await work.step(0.25)
    work.workers.idle = 60.0
    assert await work.step(0.1) == 0.75  # and not 1.25, when its turn was to begin


async def test_what_is_shown_is_what_was_seen_lately() -> None:
    work = Work(0.0)
    await work.traffic.allowance(500)
    assert work.traffic.why == "slow: hot jobs come in"
    work.now += 10
    assert work.traffic.why is None
