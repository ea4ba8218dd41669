"""What was made before a fork: the child connects anew, or is told to, and leaves what is its
parent's alone, also when it ends."""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable

import pytest

from switchyard.broker.message import JobMessage
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.topology.build import build
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import LedgerForked
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.publishing import depth
from tests.support.system import JOB_MODULES

KEY, QUEUE = "backfill.noop", "backfill.llm"


def forked(work: Callable[[], object]) -> int:
    """Run `work` in a forked child that ends as programs end, its garbage collected; its exit
    code."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            import gc

            gc.collect()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture
def settings(broker: TestBroker) -> BrokerSettings:
    registry = Registry.load(JOB_MODULES)
    asyncio.run(broker.declare(build(broker.profile, registry.routes)))
    return BrokerSettings(amqp_url=broker.amqp_url, profile=broker.profile, confirm_timeout=5)


def message() -> JobMessage:
    return JobMessage(job_type="noop", payload={})


async def has_one_connection(broker: TestBroker) -> None:
    """Wait until the broker knows of one alone: it tells of what ended a moment later."""

    async def is_one() -> bool:
        return len(await broker.management.connections()) == 1

    await eventually(is_one, what="one connection")


def test_a_blocking_publisher_publishes_in_parent_and_children(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    with BlockingPublisher(settings) as publisher:
        publisher.publish(message(), KEY)

        def work() -> None:
            for _ in range(3):
                publisher.publish(message(), KEY)
            publisher.close()

        for number in range(1, 3):
            assert forked(work) == 0
            publisher.publish(message(), KEY)
            assert asyncio.run(depth(broker.amqp_url, QUEUE)) == 1 + number * 4
        assert forked(publisher.close) == 0
        publisher.publish(message(), KEY)
        asyncio.run(has_one_connection(broker))  # the parent's, the first and only one


def test_what_was_under_way_at_the_fork_is_the_parents(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    many = (Outgoing(message(), KEY) for _ in range(settings.publish_window * 2))
    with BlockingPublisher(settings) as publisher:
        stream = publisher.publish_stream(many)
        next(stream)

        def work() -> None:
            rest = list(stream)
            assert rest  # each ends: as not known, or as one that the child has sent anew

        assert forked(work) == 0
        assert all(type(each).__name__ == "Accepted" for each in stream)


def test_an_asyncio_publisher_connects_anew_in_the_childs_loop(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    publisher = Publisher(settings)

    async def child() -> None:
        for _ in range(3):
            await publisher.publish(message(), KEY)
        await publisher.close()

    async def parent() -> None:
        async with publisher:
            await publisher.publish(message(), KEY)
            for work in (lambda: asyncio.run(child()), lambda: None):
                assert await asyncio.to_thread(lambda: 0) == 0
                assert forked(work) == 0  # in the middle of the parent's loop
                await asyncio.wait_for(publisher.publish(message(), KEY), 5)
            await has_one_connection(broker)

    asyncio.run(parent())
    assert asyncio.run(depth(broker.amqp_url, QUEUE)) == 6


def test_a_job_publisher_says_in_the_child_that_its_ledger_is_the_parents(
    settings: BrokerSettings, database_url: str
) -> None:
    registry = Registry.load(JOB_MODULES)

    async def child(jobs: JobPublisher, ledger: Ledger) -> None:
        with pytest.raises(LedgerForked, match="open another one in the child"):
            await asyncio.wait_for(jobs.publish(JobRequest(KEY, {})), 5)
        with pytest.raises(LedgerForked):
            await ledger.job_reads.get("none")
        await ledger.close()
        async with await Ledger.open(database_url) as own, Publisher(settings) as publisher:
            await JobPublisher(registry, own, publisher).publish(JobRequest(KEY, {}))

    async def parent() -> None:
        await make_ledger(database_url)
        async with await Ledger.open(database_url) as ledger, Publisher(settings) as publisher:
            jobs = JobPublisher(registry, ledger, publisher)
            await jobs.publish(JobRequest(KEY, {}))
            assert forked(lambda: asyncio.run(child(jobs, ledger))) == 0
            await jobs.publish(JobRequest(KEY, {}))
            assert len((await ledger.job_reads.list_jobs()).items) == 3

    asyncio.run(parent())
