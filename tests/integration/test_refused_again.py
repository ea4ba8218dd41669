"""A job that one request has accepted is not discarded when another request for it is refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from switchyard.broker.errors import LaneFull, PublishError, Unroutable
from switchyard.broker.lanes import DEAD_LOG_QUEUE, DEAD_QUEUE
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.records.results import Created
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.jobs import journal
from tests.support.publishing import SlowPublisher
from tests.support.system import System, declare, lanes_with, open_system

INTERVALS = SchedulerIntervals(turn=0.05, pending=0.0)
"""The outbox publishes pending jobs at once."""
KEYED = JobRequest("backfill.noop", {"n": 1}, idempotency_key="k")


@pytest.fixture
async def system(broker310: TestBroker, database_url: str) -> AsyncIterator[System]:
    lanes = lanes_with(max_length={"backfill": 1})
    async with open_system(broker310, database_url, lanes=lanes) as opened:
        yield opened


@asynccontextmanager
async def open_outbox(system: System) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=INTERVALS)
    try:
        yield scheduler
    finally:
        await scheduler.close()


async def assert_runs_once(system: System, job_id: str) -> None:
    """Let the outbox publish the job and a worker run it, and check that it ran once."""
    await system.start_worker("llm")
    async with open_outbox(system) as scheduler, asyncio.timeout(20):
        while await system.state(job_id) is not State.SUCCEEDED:
            await scheduler.turn()
            await asyncio.sleep(0.02)
    await system.stop_workers()
    assert journal.runs(job_id) == 1


async def accept_as_pending(system: System, request: JobRequest) -> str:
    """Record a job as a request does that leaves it to the outbox. Returns its id."""
    new = prepare(system.registry, request)
    await system.ledger.jobs.record(new)
    return new.message.job_id


async def test_a_full_lane_does_not_discard_a_job_that_was_accepted_before(system: System) -> None:
    job_id = await accept_as_pending(system, KEYED)
    await system.publish_foreign("backfill.noop")
    with pytest.raises(LaneFull):
        await system.publish("backfill.noop", job_id="another")
    assert await system.state("another") is None
    for _ in range(2):
        repeated = await system.jobs.publish(KEYED)
        assert repeated == Published(job_id, "backfill.noop", State.PENDING, duplicate=True)
    await assert_runs_once(system, job_id)


async def test_a_missing_queue_does_not_discard_a_job_that_was_accepted_before(
    system: System,
) -> None:
    job_id = await accept_as_pending(system, KEYED)
    async with system.channel() as channel:
        for queue in (
            "backfill.llm",
            DEAD_QUEUE,
            DEAD_LOG_QUEUE,
        ):  # or it would become a dead letter
            await channel.queue_delete(queue)
    with pytest.raises(Unroutable):
        await system.publish("backfill.noop", job_id="another")
    assert await system.state("another") is None
    assert (await system.jobs.publish(KEYED)).state is State.PENDING
    await declare(system.broker, system.registry, lanes=system.lanes)
    await assert_runs_once(system, job_id)


async def test_a_request_that_is_refused_after_another_was_answered_keeps_the_job(
    system: System,
) -> None:
    await system.publish_foreign("backfill.noop")
    slow = SlowPublisher(system.wire)
    first = JobPublisher(system.registry, system.ledger, slow)
    publishing = asyncio.create_task(
        first.publish_many([KEYED, JobRequest("backfill.noop", {}, job_id="alone")])
    )
    await slow.answered.wait()
    answer = await system.jobs.publish(KEYED)
    assert (answer.state, answer.duplicate) == (State.PENDING, True)
    slow.go_on.set()
    published, alone = await publishing
    assert published == Published(answer.job_id, "backfill.noop", State.PENDING)
    assert isinstance(alone, LaneFull)
    assert await system.state("alone") is None
    await assert_runs_once(system, answer.job_id)


async def test_one_job_twice_in_a_batch_that_is_refused_is_kept(system: System) -> None:
    await system.publish_foreign("backfill.noop")
    first, second = await system.jobs.publish_many([KEYED, KEYED])
    assert isinstance(first, Published)
    assert isinstance(second, Published)
    assert (first.job_id, first.state) == (second.job_id, State.PENDING)
    await assert_runs_once(system, first.job_id)


async def test_the_answers_to_concurrent_requests_are_all_true(
    system: System, database_url: str
) -> None:
    await system.publish_foreign("backfill.noop")
    async with await Ledger.open(database_url) as other_ledger:
        publishers = [system.jobs, JobPublisher(system.registry, other_ledger, system.wire)]
        keys = [f"k{number}" for number in range(10)]

        async def publish(publisher: JobPublisher, key: str) -> tuple[str, Published | None]:
            request = JobRequest("backfill.noop", {}, idempotency_key=key)
            try:
                return key, await publisher.publish(request)
            except PublishError:
                return key, None

        answers = await asyncio.gather(
            *(publish(publisher, key) for key in keys for publisher in publishers * 2)
        )
    ids = {published.job_id for _, published in answers if published is not None}
    assert set(await system.ledger.job_reads.states(list(ids))) == ids
    for job_id in ids:
        assert await system.state(job_id) is State.PENDING


async def test_a_slow_request_does_not_take_back_a_job_that_the_outbox_handles(
    system: System,
) -> None:
    await system.publish_foreign("backfill.noop")
    slow = SlowPublisher(system.wire)
    first = JobPublisher(system.registry, system.ledger, slow)
    publishing = asyncio.create_task(first.publish(KEYED))
    await slow.answered.wait()
    async with open_outbox(system) as scheduler:
        assert (await scheduler.turn()).refused == 1  # it will be tried again
    slow.go_on.set()
    published = await publishing
    assert published.state is State.PENDING
    await assert_runs_once(system, published.job_id)


async def test_a_job_that_was_taken_back_before_the_outbox_sends_it_is_not_sent(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    (created,) = await system.ledger.jobs.record_many([prepare(system.registry, KEYED)])
    assert isinstance(created, Created)
    fetch = system.ledger.job_reads.due_pending

    async def fetch_and_roll_back(*arguments, **options):
        due_jobs = await fetch(*arguments, **options)
        await system.ledger.jobs.rollback_inserts([created])
        return due_jobs

    monkeypatch.setattr(system.ledger.job_reads, "due_pending", fetch_and_roll_back)
    async with open_outbox(system) as scheduler:
        turn = await scheduler.turn()
    assert (turn.outbox, turn.refused) == (0, 0)
    assert await system.ready("backfill.llm") == 0
