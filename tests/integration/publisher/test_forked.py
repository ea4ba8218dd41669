"""Publishers that were opened before a fork: the child connects anew, or is told to, and leaves its
parent's connections alone, also when it ends."""

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


def run_in_fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked child, then collect its garbage; return the exit code."""
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


def make_message() -> JobMessage:
    return JobMessage(job_type="noop", payload={})


async def wait_for_one_connection(broker: TestBroker) -> None:
    """Wait until the broker lists one connection: it lists closed ones for a moment."""

    async def has_one() -> bool:
        return len(await broker.management.connections()) == 1

    await eventually(has_one, what="one connection")


def test_a_blocking_publisher_publishes_in_parent_and_children(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    with BlockingPublisher(settings) as publisher:
        publisher.publish(make_message(), KEY)

        def work() -> None:
            for _ in range(3):
                publisher.publish(make_message(), KEY)
            publisher.close()

        for number in range(1, 3):
            assert run_in_fork(work) == 0
            publisher.publish(make_message(), KEY)
            assert asyncio.run(depth(broker.amqp_url, QUEUE)) == 1 + number * 4
        assert run_in_fork(publisher.close) == 0
        publisher.publish(make_message(), KEY)
        asyncio.run(wait_for_one_connection(broker))  # the parent's first one, still open


def test_the_child_leaves_publishes_under_way_to_the_parent(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    outgoing = (Outgoing(make_message(), KEY) for _ in range(settings.publish_window * 2))
    with BlockingPublisher(settings) as publisher:
        stream = publisher.publish_stream(outgoing)
        next(stream)

        def work() -> None:
            results = list(stream)
            assert results  # each has a result: unknown, or sent again by the child

        assert run_in_fork(work) == 0
        assert all(type(result).__name__ == "Accepted" for result in stream)


def test_an_asyncio_publisher_connects_anew_in_the_childs_loop(
    broker: TestBroker, settings: BrokerSettings
) -> None:
    publisher = Publisher(settings)

    async def child() -> None:
        for _ in range(3):
            await publisher.publish(make_message(), KEY)
        await publisher.close()

    async def parent() -> None:
        async with publisher:
            await publisher.publish(make_message(), KEY)
            for work in (lambda: asyncio.run(child()), lambda: None):
                assert await asyncio.to_thread(lambda: 0) == 0
                assert run_in_fork(work) == 0  # in the middle of the parent's loop
                await asyncio.wait_for(publisher.publish(make_message(), KEY), 5)
            await wait_for_one_connection(broker)

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
            assert run_in_fork(lambda: asyncio.run(child(jobs, ledger))) == 0
            await jobs.publish(JobRequest(KEY, {}))
            assert len((await ledger.job_reads.list_jobs()).items) == 3

    asyncio.run(parent())
