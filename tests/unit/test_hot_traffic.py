"""Giving way to hot jobs: the turns of bulk work, with a ledger that a test sets."""

import time

import pytest

from services.hot_traffic import STEP, HotTraffic


class Ledger:
    """Says when the newest hot job was made, and counts how often it was asked."""

    newest: float | None = None
    asked = 0

    async def newest_in(self, lane: str) -> float | None:
        assert lane == "hot"
        self.asked += 1
        return self.newest


class Paused(Exception):
    pass


class Work:
    """Bulk work by a clock of its own: for whom one waits, time passes."""

    def __init__(self, newest: float | None) -> None:
        self.now = 0.0
        self.ledger = Ledger()
        self.ledger.newest = newest
        self.traffic = HotTraffic(self.ledger, clock=lambda: self.now)  # type: ignore[arg-type]
        self.is_paused = False

    async def sleep(self, seconds: float) -> None:
        """Stands for the session's."""
        if self.is_paused:
            raise Paused
        self.now += seconds

    async def step(self, seconds: float) -> float:
        """A step of so many seconds; when it began."""
        async with self.traffic.turn(self):  # type: ignore[arg-type]
            began = self.now
            self.now += seconds
        return began


@pytest.mark.parametrize(("age", "room"), [(None, 500), (0.0, STEP), (4.0, STEP), (6.0, 500)])
async def test_steps_are_small_while_hot_jobs_come_in(age: float | None, room: int) -> None:
    traffic = Work(None if age is None else time.time() - age).traffic
    assert await traffic.room(500) == room
    assert await traffic.room(3) == 3
    assert (traffic.why is None) == (room == 500)


async def test_the_ledger_is_asked_twice_a_second() -> None:
    work = Work(None)
    for _ in range(100):
        await work.traffic.room(500)
        work.now += 0.01
    assert work.ledger.asked == 2


async def test_after_each_step_bulk_work_rests_by_how_long_it_took() -> None:
    work = Work(time.time())
    assert [await work.step(seconds) for seconds in (1, 0.5, 0.25, 0)] == [0, 4, 6, 7]


async def test_a_step_that_had_to_wait_itself_is_no_measure() -> None:
    work = Work(time.time())
    assert [await work.step(seconds) for seconds in (60, 1)] == [0, 63]


async def test_several_operations_together_take_no_more_of_the_time_than_one() -> None:
    work = Work(time.time())
    turns = [work.traffic.turn(work) for _ in range(3)]  # type: ignore[arg-type]
    await work.step(1)
    begins = []
    for turn in turns:
        work.now = 1  # all of them ask at once
        await turn.__aenter__()
        begins.append(work.now)
    assert begins == [4, 8, 12]


async def test_without_hot_jobs_nobody_waits_for_a_turn() -> None:
    work = Work(None)
    assert [await work.step(1) for _ in range(3)] == [0, 1, 2]


async def test_who_is_paused_while_waiting_keeps_nobody_else() -> None:
    work = Work(time.time())
    await work.step(1)
    work.is_paused = True
    with pytest.raises(Paused):
        await work.step(1)
    work.is_paused = False
    assert await work.step(1) == 8
