"""The blocking publisher alone: its window, and iterables that are slow or raise.

The proxy runs in the test's event loop, so publishers that use it run in a thread.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import Accepted, Outgoing
from switchyard.broker.publish.session import Session
from switchyard.broker.settings import BrokerSettings
from tests.support.brokers import TestBroker
from tests.support.publishing import (
    BACKFILL,
    BACKFILL_QUEUE,
    HOT,
    HOT_QUEUE,
    broker_settings,
    declare,
    depth,
    job,
    jobs,
    take,
    try_publish_blocking,
)
from tests.support.tcp_proxy import TcpProxy

in_thread = asyncio.to_thread


async def test_a_stream_takes_no_more_jobs_of_its_generator_than_a_window(
    lanes: TestBroker,
) -> None:
    count, window = 2_000, 200
    assert count_most_under_way(broker_settings(lanes, publish_window=window), count) <= window + 1
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_take_no_more_jobs_either(
    broker310: TestBroker, window: int
) -> None:
    await declare(broker310)
    assert count_most_under_way(broker_settings(broker310, publish_window=window), 50) <= window + 1


def count_most_under_way(settings: BrokerSettings, count: int) -> int:
    """Publish that many generated jobs; return how many of them were under way at most."""
    generated, yielded, max_under_way = 0, 0, 0

    def generate() -> Iterator[Outgoing]:
        nonlocal generated, max_under_way
        for number in range(count):
            generated += 1
            max_under_way = max(max_under_way, generated - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    with BlockingPublisher(settings) as publisher:
        for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return max_under_way


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_unconfirmed_messages_never_exceed_the_window(
    proxied: tuple[TcpProxy, BrokerSettings], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, settings = proxied
    loop = asyncio.get_running_loop()
    count = max(30, 2 * window)
    unconfirmed_counts: list[int] = []
    publish = Session.publish

    def count_unconfirmed(session: Session, *args: Any) -> Any:
        sent = publish(session, *args)
        unconfirmed_counts.append(session.unconfirmed)
        if session.unconfirmed == window:
            loop.call_soon_threadsafe(proxy.resume)
        return sent

    async def hold_confirms() -> None:
        proxy.pause("to_client")

    def publish_two_streams() -> list[Any]:
        update = {"publish_window": window}
        with BlockingPublisher(settings.model_copy(update=update)) as publisher:
            assert try_publish_blocking(publisher, BACKFILL)
            monkeypatch.setattr(Session, "publish", count_unconfirmed)
            asyncio.run_coroutine_threadsafe(hold_confirms(), loop).result()
            abandoned = publisher.publish_stream(jobs(count, BACKFILL))
            next(abandoned)  # its unconfirmed jobs still count
            return publisher.publish_many(jobs(count, BACKFILL))

    results = await in_thread(publish_two_streams)
    assert [type(result) for result in results] == [Accepted] * count
    assert max(unconfirmed_counts) == window


async def test_a_job_is_sent_before_a_slow_iterable_gives_the_next(lanes: TestBroker) -> None:
    """Jobs of a slow iterable are not held back until the window is full."""
    may_give_last = asyncio.Event()
    loop = asyncio.get_running_loop()

    def generate_slowly() -> Iterator[Outgoing]:
        for number in range(3):
            time.sleep(0.02)
            yield Outgoing(job(f"job-{number}"), HOT)
        asyncio.run_coroutine_threadsafe(may_give_last.wait(), loop).result()
        yield Outgoing(job("last"), HOT)

    def publish() -> list[Any]:
        with BlockingPublisher(broker_settings(lanes)) as publisher:
            return publisher.publish_many(generate_slowly())

    publishing = asyncio.create_task(in_thread(publish))
    try:
        first_messages = await take(lanes.amqp_url, HOT_QUEUE, 3)
        assert not publishing.done()
    finally:
        may_give_last.set()
    assert {message.message_id for message in first_messages} == {"job-0", "job-1", "job-2"}
    assert [type(result) for result in await publishing] == [Accepted] * 4


async def test_an_error_of_the_iterable_is_raised_to_the_caller(lanes: TestBroker) -> None:
    def generate_and_fail() -> Iterator[Outgoing]:
        yield Outgoing(job(), HOT)
        raise ArithmeticError("of the caller")

    with BlockingPublisher(broker_settings(lanes)) as publisher:
        with pytest.raises(ArithmeticError, match="of the caller"):
            publisher.publish_many(generate_and_fail())
        assert try_publish_blocking(publisher, HOT)


async def test_a_publisher_leaves_no_open_files_behind(broker310: TestBroker) -> None:
    await declare(broker310)
    open_files_before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with BlockingPublisher(broker_settings(broker310)) as publisher:
            publisher.publish(job(), HOT)
    assert len(os.listdir("/proc/self/fd")) == open_files_before


async def test_closing_a_connection_that_is_silent_takes_a_second(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    publisher = BlockingPublisher(settings)
    await in_thread(publisher.publish, job(), HOT)
    proxy.pause()
    async with asyncio.timeout(5):
        await in_thread(publisher.close)
    publisher.close()  # closing twice is allowed
