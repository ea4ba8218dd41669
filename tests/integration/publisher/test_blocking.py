"""What is the blocking publisher's own: its window, and iterables that are slow or break.

The proxy of a test needs the test's own loop, so what goes through it runs in a thread.
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
    accepted_blocking,
    broker_settings,
    declare,
    depth,
    job,
    jobs,
    take,
)
from tests.support.tcp_proxy import TcpProxy

in_thread = asyncio.to_thread


async def test_thousands_of_jobs_of_a_generator_are_never_all_in_memory(lanes: TestBroker) -> None:
    count, window = 2_000, 200
    assert most_held(broker_settings(lanes, publish_window=window), count) <= window + 1
    assert await depth(lanes.amqp_url, BACKFILL_QUEUE) == count


@pytest.mark.parametrize("window", [1, 2, 3])
async def test_the_smallest_windows_hold_no_more(broker310: TestBroker, window: int) -> None:
    await declare(broker310)
    assert most_held(broker_settings(broker310, publish_window=window), 50) <= window + 1


def most_held(settings: BrokerSettings, count: int) -> int:
    """Publish so many generated jobs; how many of them were under way at most."""
    made, yielded, most = 0, 0, 0

    def generate() -> Iterator[Outgoing]:
        nonlocal made, most
        for number in range(count):
            made += 1
            most = max(most, made - yielded)
            yield Outgoing(job(f"job-{number}"), BACKFILL)

    with BlockingPublisher(settings) as publisher:
        for result in publisher.publish_stream(generate()):
            assert result == Accepted(f"job-{yielded}", BACKFILL)
            yielded += 1
    assert yielded == count
    return most


@pytest.mark.parametrize("window", [1, 2, 7, 100])
async def test_never_more_than_a_window_is_unconfirmed(
    proxied: tuple[TcpProxy, BrokerSettings], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, settings = proxied
    loop = asyncio.get_running_loop()
    count = max(30, 2 * window)
    seen: list[int] = []
    publish = Session.publish

    def watched(session: Session, *args: Any) -> Any:
        sent = publish(session, *args)
        seen.append(session.unconfirmed)
        if session.unconfirmed == window:
            loop.call_soon_threadsafe(proxy.resume)
        return sent

    async def hold_confirms() -> None:
        proxy.pause("to_client")

    def work() -> list[Any]:
        update = {"publish_window": window}
        with BlockingPublisher(settings.model_copy(update=update)) as publisher:
            assert accepted_blocking(publisher, BACKFILL)
            monkeypatch.setattr(Session, "publish", watched)
            asyncio.run_coroutine_threadsafe(hold_confirms(), loop).result()
            abandoned = publisher.publish_stream(jobs(count, BACKFILL))
            next(abandoned)  # what this stream has sent still counts
            return publisher.publish_many(jobs(count, BACKFILL))

    results = await in_thread(work)
    assert [type(result) for result in results] == [Accepted] * count
    assert max(seen) == window


async def test_a_job_leaves_although_the_next_one_takes_its_time(lanes: TestBroker) -> None:
    """What a slow iterable has given is not held back until the window is full."""
    waited_for = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> Iterator[Outgoing]:
        for number in range(3):
            time.sleep(0.02)
            yield Outgoing(job(f"job-{number}"), HOT)
        asyncio.run_coroutine_threadsafe(waited_for.wait(), loop).result()
        yield Outgoing(job("last"), HOT)

    def publish() -> list[Any]:
        with BlockingPublisher(broker_settings(lanes)) as publisher:
            return publisher.publish_many(slow())

    publishing = asyncio.create_task(in_thread(publish))
    try:
        early = await take(lanes.amqp_url, HOT_QUEUE, 3)
        assert not publishing.done()
    finally:
        waited_for.set()
    assert {message.message_id for message in early} == {"job-0", "job-1", "job-2"}
    assert [type(result) for result in await publishing] == [Accepted] * 4


async def test_an_error_of_the_iterable_is_the_callers(lanes: TestBroker) -> None:
    def breaks() -> Iterator[Outgoing]:
        yield Outgoing(job(), HOT)
        raise ArithmeticError("of the caller")

    with BlockingPublisher(broker_settings(lanes)) as publisher:
        with pytest.raises(ArithmeticError, match="of the caller"):
            publisher.publish_many(breaks())
        assert accepted_blocking(publisher, HOT)


async def test_a_publisher_leaves_no_open_files_behind(broker310: TestBroker) -> None:
    await declare(broker310)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with BlockingPublisher(broker_settings(broker310)) as publisher:
            publisher.publish(job(), HOT)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_closing_a_connection_that_is_silent_takes_a_second(
    proxied: tuple[TcpProxy, BrokerSettings],
) -> None:
    proxy, settings = proxied
    publisher = BlockingPublisher(settings)
    await in_thread(publisher.publish, job(), HOT)
    proxy.pause()
    async with asyncio.timeout(5):
        await in_thread(publisher.close)
    publisher.close()  # a second time is fine
