import asyncio
import time

import pytest

from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk import runner as bulk_runner
from switchyard.services.engine.bulk import session as bulk_session
from switchyard.services.engine.bulk.control import (
    BulkConflict,
    InvalidLimits,
    UnknownBulkOperation,
)
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.bulk.session import BulkFailed, BulkSession, TryLater
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkHold, BulkOperation, BulkState
from switchyard.services.engine.records.states import State
from tests.support.eventually import eventually
from tests.support.made import NOW, message, new_job


async def make_operation(
    ledger: Ledger, operation_id: str = "count-1", **changes: object
) -> BulkOperation:
    fields = {"kind": "count", "title": "numbers", "spec": {"to": 5}, "created_by": "test"}
    return await ledger.bulk.create_bulk(operation_id, **{**fields, **changes})  # type: ignore[arg-type]


class CountingHandler:
    """Counts up to `to`, with a checkpoint after each number; waits at the numbers in `gates`."""

    kind = "count"

    def __init__(self) -> None:
        self.counted: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.waits_at: int | None = None
        self.errors: dict[int, list[Exception]] = {}

    async def run(self, session: BulkSession) -> None:
        number = (session.operation.cursor or {"at": 0})["at"]
        while number < session.operation.spec["to"]:
            await session.take_slots(1)
            if gate := self.gates.get(number):
                self.waits_at = number
                await gate.wait()
            if errors := self.errors.get(number):
                raise errors.pop()
            self.counted.append(number)
            number += 1
            await session.checkpoint(cursor={"at": number}, counts={"counted": number})
        await session.finish()


async def state_of(ledger: Ledger, operation_id: str = "count-1") -> BulkState:
    return (await bulk_control.require_bulk(ledger, operation_id)).state


async def test_an_operation_runs_to_its_end(ledger: Ledger) -> None:
    operation = await make_operation(ledger)
    assert (operation.state, operation.cursor, operation.counts) == (BulkState.WAITING, None, {})
    handler = CountingHandler()
    ended = await BulkRunner(ledger, [handler]).run_one("count-1")
    assert handler.counted == [0, 1, 2, 3, 4]
    assert (ended.state, ended.counts, ended.holder) == (BulkState.COMPLETED, {"counted": 5}, None)
    assert ended.started_at is not None
    assert ended.finished_at is not None


async def test_the_same_id_again_is_the_same_operation(ledger: Ledger) -> None:
    assert await make_operation(ledger) == await make_operation(ledger, title="another")


async def test_a_paused_operation_stops_and_continues_there_when_resumed(ledger: Ledger) -> None:
    await make_operation(ledger)
    handler = CountingHandler()
    handler.gates[2] = asyncio.Event()
    running = asyncio.create_task(BulkRunner(ledger, [handler]).run_one("count-1"))
    await eventually(lambda: handler.counted == [0, 1])
    await bulk_control.pause(ledger, "count-1", "lunch")
    handler.gates[2].set()
    paused = await running
    assert (paused.state, paused.note, paused.holder) == (BulkState.PAUSED, "lunch", None)
    assert paused.cursor == {"at": 3}  # the number under way was finished and noted
    await bulk_control.resume(ledger, "count-1")
    ended = await BulkRunner(ledger, [handler]).run_one("count-1")
    assert (ended.state, ended.note) == (BulkState.COMPLETED, None)
    assert handler.counted == [0, 1, 2, 3, 4]


async def test_a_pause_ends_a_wait_for_the_rate(ledger: Ledger) -> None:
    await make_operation(ledger, rate=0.01)
    handler = CountingHandler()
    running = asyncio.create_task(BulkRunner(ledger, [handler]).run_one("count-1"))
    await eventually(lambda: is_running(ledger))
    await bulk_control.pause(ledger, "count-1")
    async with asyncio.timeout(20):  # and not the 100 s that its rate asks for
        assert (await running).state is BulkState.PAUSED
    assert handler.counted == []


async def test_a_rate_is_kept_and_can_be_lifted_while_the_operation_runs(ledger: Ledger) -> None:
    await make_operation(ledger, rate=0.01, spec={"to": 200})
    handler = CountingHandler()
    running = asyncio.create_task(BulkRunner(ledger, [handler]).run_one("count-1"))
    await eventually(lambda: is_running(ledger))
    assert handler.counted == []
    await ledger.bulk.set_bulk_limits("count-1", {"rate": None})
    async with asyncio.timeout(10):
        assert (await running).state is BulkState.COMPLETED
    assert handler.counted == list(range(200))


async def is_running(ledger: Ledger, operation_id: str = "count-1") -> bool:
    return (await bulk_control.require_bulk(ledger, operation_id)).state is BulkState.RUNNING


async def test_a_cancelled_operation_neither_runs_nor_resumes(ledger: Ledger) -> None:
    await make_operation(ledger)
    assert (await bulk_control.cancel(ledger, "count-1")).state is BulkState.CANCELLED
    assert (await bulk_control.cancel(ledger, "count-1")).state is BulkState.CANCELLED
    handler = CountingHandler()
    assert (await BulkRunner(ledger, [handler]).run_one("count-1")).state is BulkState.CANCELLED
    assert handler.counted == []
    with pytest.raises(BulkConflict, match="is over, and can't be resumed"):
        await bulk_control.resume(ledger, "count-1")
    with pytest.raises(UnknownBulkOperation):
        await bulk_control.pause(ledger, "nothing")


async def test_one_process_holds_an_operation(ledger: Ledger) -> None:
    for number in range(3):
        await make_operation(ledger, f"count-{number}")
    claimed = await asyncio.gather(
        *(
            ledger.bulk.claim_bulk(BulkHold(f"p{number}", 60), kinds=["count"])
            for number in range(9)
        )
    )
    held = [operation.id for operation in claimed if operation is not None]
    assert sorted(held) == ["count-0", "count-1", "count-2"]
    with pytest.raises(BulkConflict, match="run by another process"):
        await BulkRunner(ledger, [CountingHandler()]).run_one("count-1")


async def test_an_operation_started_or_resumed_for_a_process_is_left_to_it(ledger: Ledger) -> None:
    handler, scheduler = CountingHandler(), BulkHold("scheduler", 60)
    runner = BulkRunner(ledger, [handler])
    await make_operation(ledger, hold=runner.hold)
    assert await ledger.bulk.claim_bulk(scheduler, kinds=["count"]) is None
    handler.gates[2] = asyncio.Event()
    running = asyncio.create_task(runner.run_one("count-1"))
    await eventually(lambda: handler.waits_at == 2)
    await bulk_control.pause(ledger, "count-1")
    handler.gates[2].set()
    assert (await running).state is BulkState.PAUSED

    await bulk_control.resume(ledger, "count-1", hold=runner.hold)
    assert await ledger.bulk.claim_bulk(scheduler, kinds=["count"]) is None
    assert (await runner.run_one("count-1")).state is BulkState.COMPLETED


async def test_a_resume_does_not_take_an_operation_from_another_process(ledger: Ledger) -> None:
    await make_operation(ledger, hold=BulkHold("other", 60))
    await bulk_control.pause(ledger, "count-1")
    resumed = await bulk_control.resume(ledger, "count-1", hold=BulkHold("mine", 60))
    assert (resumed.state, resumed.holder) == (BulkState.WAITING, "other")


async def test_a_process_that_died_is_replaced(ledger: Ledger) -> None:
    await make_operation(ledger)
    assert await ledger.bulk.claim_bulk(BulkHold("dead", -1), kinds=["count"]) is not None
    assert await ledger.bulk.checkpoint_bulk("count-1", "dead", -1, cursor={"at": 3}) is not None
    handler = CountingHandler()
    assert (await BulkRunner(ledger, [handler]).run_one("count-1")).state is BulkState.COMPLETED
    assert handler.counted == [3, 4]
    assert await ledger.bulk.checkpoint_bulk("count-1", "dead", 60, cursor={"at": 0}) is None


async def test_an_operation_that_raises_try_later_is_tried_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_runner, "MIN_RETRY_PAUSE", 0.1)
    await make_operation(ledger)
    handler = CountingHandler()
    handler.errors[2] = [TryLater("the source is away")]
    ended = await BulkRunner(ledger, [handler]).run_one("count-1")
    assert (ended.state, ended.note) == (BulkState.COMPLETED, None)
    assert handler.counted == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "note"),
    [(BulkFailed("no such file"), "no such file"), (KeyError("x"), "KeyError: 'x'")],
)
async def test_a_failed_operation_says_why_and_can_be_resumed(
    ledger: Ledger, error: Exception, note: str
) -> None:
    await make_operation(ledger)
    handler = CountingHandler()
    handler.errors[2] = [error]
    ended = await BulkRunner(ledger, [handler]).run_one("count-1")
    assert (ended.state, ended.note) == (BulkState.FAILED, note)
    await bulk_control.resume(ledger, "count-1")
    assert (await BulkRunner(ledger, [handler]).run_one("count-1")).state is BulkState.COMPLETED


async def test_a_runner_claims_new_operations_and_releases_them_when_it_stops(
    ledger: Ledger,
) -> None:
    handler = CountingHandler()
    handler.gates[3] = asyncio.Event()
    runner = BulkRunner(ledger, [handler])
    running = asyncio.create_task(runner.run())
    await make_operation(ledger)
    await make_operation(ledger, "other-1", kind="other")
    await eventually(lambda: handler.waits_at == 3)
    assert handler.counted == [0, 1, 2]
    runner.stop()
    handler.gates[3].set()
    await running
    operation = await bulk_control.require_bulk(ledger, "count-1")
    assert (operation.state, operation.holder, operation.cursor) == (
        BulkState.RUNNING,
        None,
        {"at": 4},
    )
    assert await state_of(ledger, "other-1") is BulkState.WAITING


async def test_jobs_are_counted_by_operation_and_state(ledger: Ledger) -> None:
    own_jobs = [message(f"own-{number}", operation_id="count-1") for number in range(3)]
    follower = message("follower", operation_id="count-1", parent_id="own-0")
    await ledger.jobs.record_many([new_job(job) for job in [*own_jobs, follower, message("alien")]])
    await ledger.jobs.mark_queued(["own-0"], NOW)
    assert await ledger.bulk_jobs.count_bulk_jobs("count-1") == (
        {State.PENDING: 2, State.QUEUED: 1},
        {State.PENDING: 1},
    )
    pending = await ledger.bulk_jobs.bulk_jobs("count-1", [State.PENDING], limit=10)
    assert sorted(pending) == ["follower", "own-1", "own-2"]


async def test_operations_are_listed_newest_first(ledger: Ledger) -> None:
    for number in range(3):
        await make_operation(ledger, f"count-{number}")
    await make_operation(ledger, "other-1", kind="other")
    await bulk_control.pause(ledger, "count-1")
    page = await ledger.bulk.list_bulk("count")
    assert [operation.id for operation in page.items] == ["count-2", "count-1", "count-0"]
    paused = await ledger.bulk.list_bulk(states=[BulkState.PAUSED])
    assert [operation.id for operation in paused.items] == ["count-1"]


async def test_a_low_rate_slows_an_operation_down(ledger: Ledger) -> None:
    await make_operation(ledger, spec={"to": 3}, rate=3)
    began = time.monotonic()
    ended = await BulkRunner(ledger, [CountingHandler()]).run_one("count-1")
    assert ended.state is BulkState.COMPLETED
    assert time.monotonic() - began > 0.6


async def test_no_slots_are_given_after_the_deadline(ledger: Ledger) -> None:
    session = BulkSession(ledger, await make_operation(ledger, rate=0.01), "somebody")
    assert await session.take_slots(9, until=time.time() + 0.1) == 0


async def test_a_hold_that_had_run_out_is_renewed_and_not_taken_twice(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when the ledger was locked all the while:
    monkeypatch.setattr(bulk_session, "LEASE_RENEW_INTERVAL", 60)
    monkeypatch.setattr(bulk_runner, "CLAIM_POLL_INTERVAL", 0.05)
    await make_operation(ledger)
    handler = CountingHandler()
    gate = handler.gates[2] = asyncio.Event()
    runner = BulkRunner(ledger, [handler], lease=0.2)
    task = asyncio.create_task(runner.run())
    await eventually(lambda: len(handler.counted) == 2)
    held_until = (await bulk_control.require_bulk(ledger, "count-1")).lease_until

    async def is_renewed() -> bool:
        lease = (await bulk_control.require_bulk(ledger, "count-1")).lease_until
        return (lease or 0) > (held_until or 0)

    await eventually(is_renewed)
    gate.set()

    async def is_over() -> bool:
        return await state_of(ledger) is BulkState.COMPLETED

    await eventually(is_over)
    runner.stop()
    await task
    assert handler.counted == [0, 1, 2, 3, 4]


async def test_open_jobs_are_counted_up_to_a_limit(ledger: Ledger) -> None:
    await ledger.jobs.record_many(
        [new_job(message(f"job-{n}", operation_id="many-1")) for n in range(9)]
    )
    counts = [
        await ledger.bulk_jobs.count_open_bulk_jobs("many-1", at_most=limit)
        for limit in (1, 5, 9, 10)
    ]
    assert counts == [1, 5, 9, 9]


async def test_only_open_jobs_of_the_operation_are_counted(ledger: Ledger) -> None:
    own_job = new_job(message("job-1", operation_id="count-1"))
    await ledger.jobs.record_many([own_job, new_job(message("job-2", operation_id="other-1"))])
    assert await ledger.bulk_jobs.count_open_bulk_jobs("count-1", at_most=9) == 1
    await ledger.jobs.cancel(own_job.message.job_id, NOW)
    assert await ledger.bulk_jobs.count_open_bulk_jobs("count-1", at_most=9) == 0


@pytest.mark.parametrize(
    "changes", [{"rate": -1.0}, {"rate": 1e-9}, {"rate": 1e9}, {"max_open": 0}, {"rate": 0}]
)
async def test_senseless_limits_are_refused_and_change_nothing(
    ledger: Ledger, changes: dict[str, float]
) -> None:
    await make_operation(ledger, rate=5)
    with pytest.raises(InvalidLimits, match=r"^(rate|max_open) must be"):
        await bulk_control.set_limits(ledger, "count-1", changes)
    operation = await bulk_control.require_bulk(ledger, "count-1")
    assert (operation.rate, operation.max_open) == (5, None)


async def test_a_weight_is_changed_in_the_spec_and_only_where_queues_are_shared(
    ledger: Ledger,
) -> None:
    await make_operation(ledger)
    with pytest.raises(InvalidLimits, match="shares no queue"):
        await bulk_control.set_limits(ledger, "count-1", {"weight": 2})
    spec = {"source": "file", "weight": 1.0}
    await ledger.bulk.create_bulk(
        "backfill-1", kind="backfill", title="it", spec=spec, created_by="a test"
    )
    for weight in (0, -1, 1e-4, 1001, None):
        with pytest.raises(InvalidLimits, match="weight"):
            await bulk_control.set_limits(ledger, "backfill-1", {"weight": weight})
    changed = await bulk_control.set_limits(ledger, "backfill-1", {"weight": 3, "rate": 7})
    assert (changed.spec, changed.rate) == ({"source": "file", "weight": 3}, 7)
    assert await bulk_control.require_bulk(ledger, "backfill-1") == changed
