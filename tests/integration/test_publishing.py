"""Publishing jobs: they are recorded and confirmed, or refused with nothing left behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.errors import BrokerUnavailable, LaneFull, Unroutable
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.depths import query_queue
from switchyard.services.engine.jobs.registry import InvalidPayload
from switchyard.services.engine.publishing.bounded_publisher import TimeBoundedPublisher
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, prepare
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.records.errors import IdempotencyConflict, LedgerUnavailable
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, declare, lanes_with, open_system
from tests.support.tcp_proxy import TcpProxy


async def test_a_published_job_is_recorded_and_waits_in_its_queue(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        request = JobRequest("backfill.noop", {"n": 3}, priority=7, source="test")
        published = await system.jobs.publish(request)
        assert published == Published(published.job_id, "backfill.noop", State.QUEUED)
        record = await system.record(published.job_id)
        assert (record.state, record.payload, record.priority) == (State.QUEUED, {"n": 3}, 7)
        delivered = await system.take("backfill.llm")
        message = JobMessage.decode(delivered.body)
        assert (message.job_id, message.payload) == (published.job_id, {"n": 3})
        assert (delivered.message_id, delivered.type) == (published.job_id, "noop")
        assert (delivered.priority, delivered.content_type) == (7, "application/json")
        assert delivered.delivery_mode == 2


async def test_a_batch_is_answered_job_by_job_in_its_order(system: System) -> None:
    requests = [JobRequest("hot.noop", {"n": n}) for n in range(300)]
    outcomes = await system.jobs.publish_many(requests)
    ids = [outcome.job_id for outcome in outcomes if isinstance(outcome, Published)]
    assert len(set(ids)) == 300
    records = [await system.record(ids[n]) for n in (0, 150, 299)]
    assert [record.payload["n"] for record in records] == [0, 150, 299]
    assert set((await system.ledger.job_reads.states(ids)).values()) == {State.QUEUED}
    assert await system.ready("hot.llm") == 300


async def test_one_invalid_job_in_a_batch_leaves_nothing_of_it(system: System) -> None:
    for request, error in (
        (JobRequest("hot.noop", {"n": "three"}), InvalidPayload),
        (JobRequest("maintenance.noop", {}), InvalidJob),
        (JobRequest("hot.noop", {}, job_id="not an id"), InvalidJob),
    ):
        with pytest.raises(error):
            await system.jobs.publish_many([JobRequest("hot.noop", {}, job_id="fine"), request])
        assert await system.state("fine") is None
        assert await system.ready("hot.llm") == 0


async def test_an_idempotency_key_names_one_job_for_ever(system: System) -> None:
    first = await system.jobs.publish(JobRequest("hot.noop", {"n": 1}, idempotency_key="k"))
    repeated = await system.jobs.publish(JobRequest("hot.noop", {"n": 1}, idempotency_key="k"))
    assert repeated == Published(first.job_id, "hot.noop", State.QUEUED, duplicate=True)
    await system.start_worker("llm")
    await system.wait_for_state(first.job_id, State.SUCCEEDED)
    late = await system.jobs.publish(JobRequest("hot.noop", {"n": 1}, idempotency_key="k"))
    assert (late.job_id, late.state, late.duplicate) == (first.job_id, State.SUCCEEDED, True)
    with pytest.raises(IdempotencyConflict):
        await system.publish("hot.noop", {"n": 2}, idempotency_key="k")
    assert journal.runs(first.job_id) == 1


async def test_a_job_with_the_key_of_a_recorded_job_is_not_sent(
    system: System,
) -> None:
    """The other job was recorded by a process that died before it could publish it."""
    earlier_request = JobRequest("hot.noop", {"n": 1}, idempotency_key="k", job_id="first")
    await system.ledger.jobs.record(prepare(system.registry, earlier_request))
    own_request = JobRequest("hot.noop", {"n": 1}, idempotency_key="k", job_id="second")
    published = await system.jobs.publish(own_request)
    assert (published.job_id, published.duplicate) == ("first", True)
    assert await system.ready("hot.llm") == 0


async def test_a_job_that_an_earlier_try_has_only_recorded_is_left_to_the_outbox(
    system: System,
) -> None:
    """A second copy could only do harm: a full hot lane would make a dead letter of it."""
    request = JobRequest("hot.noop", {}, idempotency_key="k")
    await system.ledger.jobs.record(prepare(system.registry, request))
    published = await system.jobs.publish(request)
    assert (published.state, published.duplicate) == (State.PENDING, True)
    assert await system.ready("hot.llm") == 0


async def test_a_delayed_job_is_recorded_and_not_sent(system: System) -> None:
    published = await system.jobs.publish(JobRequest("hot.noop", {}, delay=60))
    assert published.state is State.SCHEDULED
    record = await system.record(published.job_id)
    assert record.state is State.SCHEDULED
    assert record.run_at == pytest.approx(record.created_at + 60, abs=1)
    assert await system.ready("hot.llm") == 0


async def test_a_full_lane_refuses_and_nothing_of_the_job_is_left(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"backfill": 3})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        accepted_ids = await system.fill("backfill.noop")
        with pytest.raises(LaneFull) as refusal:
            await system.publish("backfill.noop", job_id="late")
        assert not refusal.value.dead_lettered
        assert await system.state("late") is None
        assert await system.ready("backfill.llm") == len(accepted_ids)
        assert await system.letters() == []
        await system.start_worker("llm")
        await system.wait_until_all(accepted_ids, State.SUCCEEDED)
        await system.publish("backfill.noop", job_id="late")  # there is room now
        await system.wait_for_state("late", State.SUCCEEDED)


async def test_a_job_that_a_full_hot_lane_refuses_is_dead_and_its_publisher_is_told(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(max_length={"hot": 3})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        await system.fill("hot.noop")
        with pytest.raises(LaneFull) as refusal:
            await system.publish("hot.noop", job_id="late")
        assert refusal.value.dead_lettered
        record = await system.record("late")
        assert (record.state, record.reason) == (State.DEAD, "overflowed")
        letter = await system.wait_for_letter("late")
        assert letter.info.reason is Reason.OVERFLOWED
        assert letter.info.routing_key == "hot.noop"


async def test_a_publisher_whose_broker_is_away_leaves_nothing_half_done(system: System) -> None:
    async with open_publisher_by_proxy(system) as (jobs, proxy):
        proxy.refuse()
        with pytest.raises(BrokerUnavailable) as error:
            await jobs.publish(JobRequest("hot.noop", {}, job_id="lost"))
        assert not error.value.maybe_accepted
        assert await system.state("lost") is None
        await proxy.accept()
        published = await jobs.publish(JobRequest("hot.noop", {}, job_id="lost"))
        assert published.state is State.QUEUED


async def test_a_job_that_may_have_been_accepted_stays_for_the_scheduler(system: System) -> None:
    async with open_publisher_by_proxy(system) as (jobs, proxy):
        await jobs.publish(JobRequest("hot.noop", {}))
        proxy.cut_when(lambda sent: b"unsure" in sent, forward=True)
        unconfirmed = await jobs.publish(JobRequest("hot.noop", {}, job_id="unsure"))
        assert unconfirmed == Published("unsure", "hot.noop", State.PENDING)
        assert await system.state("unsure") is State.PENDING


async def test_a_job_whose_queue_is_missing_is_refused_and_leaves_nothing(system: System) -> None:
    async with system.channel() as channel:
        await channel.queue_delete("hot.llm")
    jobs = [JobRequest("hot.noop", {}, job_id="early"), JobRequest("backfill.noop", {})]
    early, routed = await system.jobs.publish_many(jobs)
    assert isinstance(early, Unroutable)
    assert "no queue 'hot.llm'" in str(early)
    assert "jobctl topology apply" in str(early)
    assert isinstance(routed, Published)
    assert await system.state("early") is None
    assert await system.letters() == []
    await declare(system.broker, system.registry, lanes=system.lanes)

    async def is_taken() -> bool:
        try:
            return (await system.jobs.publish(jobs[0])).state is State.QUEUED
        except Unroutable:
            return False

    await eventually(is_taken)


async def test_concurrent_publishes_query_their_queue_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried: list[str] = []

    async def query_and_record(connection: Any, queue: str) -> Any:
        queried.append(queue)
        return await query_queue(connection, queue)

    monkeypatch.setattr("switchyard.broker.publish.publisher.query_queue", query_and_record)
    await asyncio.gather(*(system.publish("hot.noop") for _ in range(50)))
    await system.publish("hot.noop")
    assert queried == ["hot.llm"]


async def test_a_publish_does_not_wait_for_a_late_answer_about_its_queue(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = asyncio.Event()

    async def query_late(connection: Any, queue: str) -> Any:
        await may_answer.wait()
        return await query_queue(connection, queue)

    monkeypatch.setattr("switchyard.broker.publish.publisher.query_queue", query_late)
    async with TimeBoundedPublisher(system.settings, name="test") as publisher:
        jobs = JobPublisher(system.registry, system.ledger, publisher)
        published = await jobs.publish(JobRequest("hot.noop", {}))
        may_answer.set()
    assert published.state is State.QUEUED


@asynccontextmanager
async def open_publisher_by_proxy(system: System) -> AsyncIterator[tuple[JobPublisher, TcpProxy]]:
    """A publisher of jobs, and the proxy between it and the broker."""
    async with TcpProxy("127.0.0.1", system.broker.node.amqp_port) as proxy:
        url = SecretStr(proxy.url(system.broker.amqp_url))
        async with Publisher(system.settings.model_copy(update={"amqp_url": url})) as publisher:
            yield JobPublisher(system.registry, system.ledger, publisher), proxy


async def test_nothing_is_sent_while_the_ledger_is_away(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raise_unavailable(jobs: object) -> None:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(system.ledger.jobs, "record_many", raise_unavailable)
    with pytest.raises(LedgerUnavailable):
        await system.publish("hot.noop")
    assert await system.ready("hot.llm") == 0
