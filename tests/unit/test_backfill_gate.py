"""The backfill gate alone, with queue depths and counts that a test sets."""

import time

from switchyard.services.engine.backfill.gate import Gate
from switchyard.services.engine.backfill.queue_quota import QueueQuota
from switchyard.services.engine.bulk.hot_traffic import JOBS_PER_STEP, HotTraffic
from switchyard.services.engine.monitoring.lane_pressure import LaneDepth, QueueDepth, Snapshot
from switchyard.services.engine.records.states import Pressure

QUEUE = "backfill.llm"


class FakeLanePressure:
    """Returns the queue depth that the test sets, in place of LanePressure."""

    depth = 0
    fresh = True
    lane = "backfill"
    last_snapshot: Snapshot | None = None

    async def snapshot(self) -> Snapshot:
        if self.last_snapshot is None or self.fresh:
            self.last_snapshot = self._take_snapshot()
        return self.last_snapshot

    def _take_snapshot(self) -> Snapshot:
        queue = QueueDepth(QUEUE, self.depth, 1, 10_000, Pressure.OK)
        return Snapshot((LaneDepth(self.lane, Pressure.OK, (queue,)),), time.monotonic())


class FakeWorkers:
    """Returns for how many seconds no worker has taken a hot job, as the test sets it."""

    idle: float | None = None

    async def hot_idle(self) -> float | None:
        return self.idle


class GateSetup:
    """A gate with the fakes that it reads."""

    def __init__(self, low: int, high: int, lane: str = "backfill") -> None:
        self.lane_pressure = FakeLanePressure()
        self.lane_pressure.lane = lane
        self.workers = FakeWorkers()
        self.open_jobs = 0
        self.gate = Gate(
            self.lane_pressure,  # type: ignore[arg-type]
            HotTraffic(self.workers),  # type: ignore[arg-type]
            self.count_open,
            lane=lane,
            queue=QUEUE,
            low=low,
            high=high,
        )

    async def count_open(self, at_most: int) -> int:
        return min(at_most, self.open_jobs)


async def test_unused_room_remains() -> None:
    gate = GateSetup(50, 100).gate
    assert await gate.allowance(500, None) == 100
    gate.count_published(2)  # all that its rate allowed
    assert await gate.allowance(500, None) == 98
    gate.count_published(98)
    assert await gate.allowance(500, None) == 0


async def test_unconfirmed_jobs_take_room_without_closing_the_gate() -> None:
    setup = GateSetup(50, 100)
    setup.lane_pressure.depth = 60  # with some of those under way, or without them
    assert await setup.gate.allowance(500, None, unconfirmed=40) == 0
    setup.gate.measure_again()
    assert await setup.gate.allowance(500, None, unconfirmed=0) == 40


async def test_a_closed_gate_opens_at_the_low_watermark() -> None:
    setup = GateSetup(50, 100)
    for depth, room in ((100, 0), (51, 0), (50, 50), (99, 1)):
        setup.lane_pressure.depth = depth
        setup.gate.measure_again()
        assert await setup.gate.allowance(500, None) == room


async def test_a_closed_gate_opens_when_its_share_of_the_queue_grows() -> None:
    setup = GateSetup(5, 60)
    quota = QueueQuota(0.25, 15)
    setup.gate._read_quota = lambda: return_quota(quota)
    setup.lane_pressure.depth = 75  # most of them another's
    assert await setup.gate.allowance(500, None) == 0
    quota = QueueQuota(0.5, 15)
    setup.gate.measure_again()
    assert await setup.gate.allowance(500, None) == 15


async def return_quota(quota: QueueQuota) -> QueueQuota:
    return quota


async def test_jobs_that_are_done_make_room_at_once() -> None:
    setup = GateSetup(500, 1_000)
    assert await setup.gate.allowance(500, 10) == 10
    setup.gate.count_published(10)  # and all are done before the next look at the queues
    assert await setup.gate.allowance(500, 10) == 10
    setup.open_jobs = 10
    setup.gate.count_published(10)
    assert await setup.gate.allowance(500, 10) == 0
    assert setup.gate.why == "10 of its jobs are not finished"


async def test_a_stale_depth_does_not_make_room_twice() -> None:
    setup = GateSetup(50, 100)
    assert await setup.gate.allowance(80, None) == 80
    setup.gate.count_published(80)
    setup.lane_pressure.fresh = False
    setup.gate.measure_again()
    assert await setup.gate.allowance(80, None) == 20


async def test_while_hot_jobs_come_in_there_is_room_for_a_small_step_only() -> None:
    setup = GateSetup(500, 1_000)
    setup.workers.idle = 1.0
    assert await setup.gate.allowance(500, None) == JOBS_PER_STEP
    assert setup.gate.why == "slow: hot jobs come in"


async def test_a_hot_job_of_long_ago_slows_nothing_down() -> None:
    setup = GateSetup(500, 1_000)
    setup.workers.idle = 60.0
    assert await setup.gate.allowance(500, None) == 500
    assert setup.gate.why is None


async def test_a_backfill_of_hot_jobs_does_not_give_way_to_itself() -> None:
    setup = GateSetup(500, 1_000, lane="hot")
    setup.workers.idle = 0.0
    assert await setup.gate.allowance(500, None) == 500
