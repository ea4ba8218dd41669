"""The gate by itself, with depths and counts that a test sets."""

import time

from switchyard.services.engine.backfill.gate import Gate
from switchyard.services.engine.backfill.queue_quota import QueueQuota
from switchyard.services.engine.bulk.hot_traffic import JOBS_PER_STEP, HotTraffic
from switchyard.services.engine.monitoring.lane_pressure import LaneDepth, QueueDepth, Snapshot
from switchyard.services.engine.records.states import Pressure

QUEUE = "backfill.llm"


class Broker:
    """Says how deep the queue is; stands for LanePressure."""

    depth = 0
    fresh = True
    lane = "backfill"
    known: Snapshot | None = None

    async def snapshot(self) -> Snapshot:
        if self.known is None or self.fresh:
            self.known = self._taken()
        return self.known

    def _taken(self) -> Snapshot:
        queue = QueueDepth(QUEUE, self.depth, 1, 10_000, Pressure.OK)
        return Snapshot((LaneDepth(self.lane, Pressure.OK, (queue,)),), time.monotonic())


class Workers:
    """Says how long no worker has taken a hot job."""

    idle: float | None = None

    async def hot_idle(self) -> float | None:
        return self.idle


class Made:
    """A gate and what it looks at."""

    def __init__(self, low: int, high: int, lane: str = "backfill") -> None:
        self.broker = Broker()
        self.broker.lane = lane
        self.workers = Workers()
        self.open_jobs = 0
        self.gate = Gate(
            self.broker,  # type: ignore[arg-type]
            HotTraffic(self.workers),  # type: ignore[arg-type]
            self.count_open,
            lane=lane,
            queue=QUEUE,
            low=low,
            high=high,
        )

    async def count_open(self, at_most: int) -> int:
        return min(at_most, self.open_jobs)


async def test_room_that_was_not_used_is_still_there() -> None:
    gate = Made(50, 100).gate
    assert await gate.allowance(500, None) == 100
    gate.count_published(2)  # all that its rate allowed
    assert await gate.allowance(500, None) == 98
    gate.count_published(98)
    assert await gate.allowance(500, None) == 0


async def test_what_is_under_way_takes_room_and_does_not_close_it() -> None:
    made = Made(50, 100)
    made.broker.depth = 60  # with some of those under way, or without them
    assert await made.gate.allowance(500, None, unconfirmed=40) == 0
    made.gate.measure_again()  # look again
    assert await made.gate.allowance(500, None, unconfirmed=0) == 40


async def test_closed_it_opens_at_the_low_watermark() -> None:
    made = Made(50, 100)
    for depth, room in ((100, 0), (51, 0), (50, 50), (99, 1)):
        made.broker.depth = depth
        made.gate.measure_again()
        assert await made.gate.allowance(500, None) == room


async def test_closed_it_opens_when_its_part_of_the_queue_grows() -> None:
    made = Made(5, 60)
    quota = QueueQuota(0.25, 15)
    made.gate._read_quota = lambda: made_of(quota)
    made.broker.depth = 75  # most of them another's
    assert await made.gate.allowance(500, None) == 0
    quota = QueueQuota(0.5, 15)
    made.gate.measure_again()
    assert await made.gate.allowance(500, None) == 15


async def made_of(quota: QueueQuota) -> QueueQuota:
    return quota


async def test_jobs_that_are_done_make_room_at_once() -> None:
    made = Made(500, 1_000)
    assert await made.gate.allowance(500, 10) == 10
    made.gate.count_published(10)  # and all are done before the next look at the queues
    assert await made.gate.allowance(500, 10) == 10
    made.open_jobs = 10
    made.gate.count_published(10)
    assert await made.gate.allowance(500, 10) == 0
    assert made.gate.why == "10 of its jobs are not finished"


async def test_depths_that_were_used_before_do_not_make_room_again() -> None:
    made = Made(50, 100)
    assert await made.gate.allowance(80, None) == 80
    made.gate.count_published(80)
    made.broker.fresh = False
    made.gate.measure_again()
    assert await made.gate.allowance(80, None) == 20


async def test_while_hot_jobs_come_in_there_is_room_for_a_small_step_only() -> None:
    made = Made(500, 1_000)
    made.workers.idle = 1.0
    assert await made.gate.allowance(500, None) == JOBS_PER_STEP
    assert made.gate.why == "slow: hot jobs come in"


async def test_a_hot_job_of_long_ago_slows_nothing_down() -> None:
    made = Made(500, 1_000)
    made.workers.idle = 60.0
    assert await made.gate.allowance(500, None) == 500
    assert made.gate.why is None


async def test_a_backfill_of_hot_jobs_does_not_give_way_to_itself() -> None:
    made = Made(500, 1_000, lane="hot")
    made.workers.idle = 0.0
    assert await made.gate.allowance(500, None) == 500
