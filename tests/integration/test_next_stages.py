"""Jobs that follow from a job are confirmed before its ack, and run once whatever breaks."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.engine.ledger.sql.tables import jobs as jobs_table
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler, TurnCounts
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, declare, lanes_with, open_system
from tests.support.tcp_proxy import TcpProxy


async def count_unacknowledged(system: System, queue: str) -> int:
    """Return how many messages the queue's consumers have not acknowledged."""
    state = await system.broker.management.queue(queue)
    return state.get("messages_unacknowledged", 0)


def all_acknowledged_in(system: System, queue: str) -> Callable[[], Any]:
    async def is_empty() -> bool:
        return await count_unacknowledged(system, queue) == 0

    return is_empty


async def test_next_stage_is_confirmed_before_ack(
    system: System, publishing_proxy: TcpProxy
) -> None:
    worker = await system.start_worker("llm")
    first = await system.publish("hot.spread", {"count": 1})  # the worker asks for the queue now
    await system.wait_for_state(first, State.SUCCEEDED)
    publishing_proxy.pause("to_client")  # what is published arrives, and its confirm does not
    parent = await system.publish("hot.spread", {"count": 2})
    await system.wait_until_ready("hot.embed", 3)
    await eventually(
        lambda: count_unacknowledged(system, "hot.llm"), what="an unacknowledged parent"
    )
    assert await system.state(parent) is State.RUNNING
    assert worker.worker.running == 1
    publishing_proxy.resume()
    await system.wait_for_state(parent, State.SUCCEEDED)
    await eventually(all_acknowledged_in(system, "hot.llm"), what="the ack")
    assert await system.ready("hot.embed") == 3


async def test_a_next_stage_without_a_queue_waits_for_one_as_pending_and_runs_then(
    system: System,
) -> None:
    async with system.channel() as channel:
        await channel.queue_delete("hot.embed")
    await system.start_worker("llm")
    parent = await system.publish("hot.spread", {"count": 1})
    await system.wait_for_state(parent, State.SUCCEEDED)
    child = await system.stage_id(parent, "received", 0)
    assert await system.state(child) is State.PENDING
    intervals = SchedulerIntervals(turn=0.05, pending=0.0)
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=intervals)
    try:
        assert await scheduler.turn() == TurnCounts(refused=1)
        assert await system.state(child) is State.PENDING
        await declare(system.broker, system.registry, lanes=system.lanes)
        await system.start_worker("embed")
        async with asyncio.timeout(20):
            while await system.state(child) is not State.SUCCEEDED:
                await scheduler.turn()
                await asyncio.sleep(0.05)
    finally:
        await scheduler.close()
    assert journal.runs(child) == 1
    assert await system.letters() == []


@pytest.mark.parametrize(
    ("step", "queue", "state"),
    [("raise", "jobs.retry.200ms", State.RETRYING), ("permanent", "jobs.dead", State.DEAD)],
)
async def test_a_retry_and_a_dead_letter_are_confirmed_before_ack(
    system: System, publishing_proxy: TcpProxy, step: str, queue: str, state: State
) -> None:
    await (await system.start_worker("llm")).publishing()
    publishing_proxy.pause("to_server")
    job_id = await system.publish("hot.scripted", {"steps": [step, "done"]})
    await journal.started(job_id)
    await eventually(lambda: count_unacknowledged(system, "hot.llm"), what="an unacknowledged job")
    assert await system.state(job_id) is State.RUNNING
    assert await system.ready(queue) == 0
    publishing_proxy.resume()
    await system.wait_for_state(job_id, state, State.SUCCEEDED)
    await eventually(all_acknowledged_in(system, "hot.llm"), what="the ack")


async def test_next_jobs_have_ids_lanes_and_parents_that_tell_where_they_came_from(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        await system.start_worker("llm", "embed")
        parent = await system.publish("backfill.spread", {"count": 3}, source="arxiv", priority=4)
        children = [await system.stage_id(parent, "received", n) for n in range(3)]
        await system.wait_until_all(children, State.SUCCEEDED)
        assert (await system.wait_for_state(parent, State.SUCCEEDED)).result == {"count": 3}
        for n, child in enumerate(children):
            record = await system.record(child)
            assert (record.lane, record.worker, record.payload["n"]) == ("backfill", "embed", n)
            assert (record.parent_id, record.pipeline) == (parent, parent)
            assert (record.source, record.priority) == ("arxiv", 4)
            assert journal.runs(child) == 1


async def test_one_pipeline_ends_before_the_next_begins(system: System) -> None:
    """One kind of worker runs both stages, and other pipelines wait in its queue already."""
    spread = {"count": 1, "job_type": "noop"}
    firsts = [await system.publish("hot.spread", spread) for _ in range(4)]
    await system.start_worker("llm", slots=1)
    lasts = [await system.stage_id(first, "noop", 0) for first in firsts]
    await system.wait_until_all(lasts, State.SUCCEEDED)
    order = [start.job_id for start in journal.starts]
    assert order == [job_id for pair in zip(firsts, lasts, strict=True) for job_id in pair]


async def test_a_repeated_stage_publishes_the_same_jobs_and_they_run_once(system: System) -> None:
    """The worker was lost after it had published the next jobs, and before it recorded its end."""
    await system.start_worker("llm", "embed")
    message = await system.publish_foreign("hot.spread", {"count": 3}, job_id="parent")
    await system.wait_for_state(message.job_id, State.SUCCEEDED)
    children = [await system.stage_id("parent", "received", n) for n in range(3)]
    await system.wait_until_all(children, State.SUCCEEDED)
    await system.ledger.core.database.write(
        lambda connection: connection.execute(
            jobs_table.delete().where(jobs_table.c.id == "parent")
        )
    )
    await system.publish_foreign("hot.spread", {"count": 3}, job_id="parent")
    await journal.started("parent", times=2)
    await system.wait_for_state("parent", State.SUCCEEDED)
    await system.stop_workers()
    assert [journal.runs(child) for child in children] == [1, 1, 1]


async def test_a_next_job_that_can_not_be_published_is_a_defect_of_the_handler(
    system: System,
) -> None:
    await system.start_worker("llm")
    for payload in (
        {"job_type": "nobody_knows"},
        {"lane": "vlm_ocr"},
        {"payload": {"n": "three"}},
        {"job_type": "scripted"},
    ):
        parent = await system.publish("hot.spread", payload)
        record = await system.wait_for_state(parent, State.DEAD)
        assert (record.reason, record.error_type) == ("permanent", "InvalidOutcome"), payload
        assert (await system.wait_for_letter(parent)).info.attempts == 1
    fine = await system.publish("hot.noop")
    await system.wait_for_state(fine, State.SUCCEEDED)


async def test_a_next_job_that_the_ledger_rejects_is_a_defect_of_the_handler(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the job went back to its queue, it would be rejected again and again."""
    record_many = system.ledger.jobs.record_many

    async def reject_next_jobs(batch: Sequence[NewJob]) -> Any:
        if any(job.message.metadata.parent_id for job in batch):
            raise RowRejected("value too long")
        return await record_many(batch)

    monkeypatch.setattr(system.ledger.jobs, "record_many", reject_next_jobs)
    await system.start_worker("llm")
    parent = await system.publish("hot.spread", {"count": 1})
    record = await system.wait_for_state(parent, State.DEAD)
    assert (record.reason, record.error_type) == ("permanent", "InvalidOutcome")
    assert journal.runs(parent) == 1
    assert (await system.wait_for_letter(parent)).info.attempts == 1


async def test_a_job_whose_next_lane_is_full_waits_without_using_up_an_attempt(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"backfill": 3})
    async with open_system(broker, sqlite_url, lanes=lanes, retry_delays=(0.1, 0.2)) as system:
        filling = await system.fill("backfill.received")
        await system.start_worker("llm")
        parent = await system.publish("hot.spread", {"lane": "backfill"})
        await journal.started(parent, times=3)
        record = await system.record(parent)
        assert (record.attempts, record.result) == (0, None)
        assert {attempt.outcome for attempt in record.timeline} == {AttemptOutcome.SNOOZE}
        assert {attempt.error_type for attempt in record.timeline} == {"LaneFull"}
        await system.start_worker("embed")
        record = await system.wait_for_state(parent, State.SUCCEEDED)
        assert record.attempts == 0
        child = await system.stage_id(parent, "received", 0)
        await system.wait_until_all([child, *filling], State.SUCCEEDED)
        assert journal.runs(child) == 1


async def test_a_next_job_that_a_full_hot_lane_refuses_is_dead_and_its_parent_is_done(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"hot": 3})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        await system.fill("hot.received")
        await system.start_worker("llm")
        parent = await system.publish("hot.spread")
        await system.wait_for_state(parent, State.SUCCEEDED)
        child = await system.stage_id(parent, "received", 0)
        record = await system.record(child)
        assert (record.state, record.reason) == (State.DEAD, "overflowed")
        letter = await system.wait_for_letter(child)
        assert letter.info.reason is Reason.OVERFLOWED
        assert letter.message is not None
        assert letter.message.metadata.parent_id == parent


async def test_next_jobs_of_which_a_full_lane_refuses_some_run_once_each(
    broker310: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"backfill": 3})
    async with open_system(broker310, sqlite_url, lanes=lanes, retry_delays=(0.1, 0.2)) as system:
        await system.start_worker("llm")
        parent = await system.publish("hot.spread", {"count": 5, "lane": "backfill"})
        await journal.started(parent, times=2)
        children = [await system.stage_id(parent, "received", n) for n in range(5)]
        states = await system.ledger.job_reads.states(children)
        assert list(states.values()).count(State.QUEUED) == 3
        await system.start_worker("embed")
        await system.wait_until_all([parent, *children], State.SUCCEEDED)
        assert [journal.runs(child) for child in children] == [1] * 5
