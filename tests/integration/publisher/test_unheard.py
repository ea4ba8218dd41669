"""Events without a listener are not sent; a listener gets all events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.broker.publish import no_listener_cache
from switchyard.broker.publish.no_listener_cache import MAX_ENTRIES
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.connection import connected
from switchyard.services.engine.monitoring.job_events import EventFeed, announce
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import HOT, broker_settings, job

STARTED_EVENT = (EVENTS_EXCHANGE, "started.hot.crawl")


@pytest.fixture
def sent_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Routing keys of all events that were sent."""
    sent_keys: list[str] = []
    publish = PipelinedChannel.publish

    def record_key(
        channel: PipelinedChannel, exchange: str, routing_key: str, *args: Any, **options: Any
    ) -> asyncio.Future[None]:
        if exchange == EVENTS_EXCHANGE:
            sent_keys.append(routing_key)
        return publish(channel, exchange, routing_key, *args, **options)

    monkeypatch.setattr(PipelinedChannel, "publish", record_key)
    return sent_keys


def send_event(publisher: Publisher, number: int, event: str = "started") -> None:
    announce(publisher, event, job_id=str(number), job_type="crawl", lane="hot", attempt=number + 1)


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache from probing again, and its entries from expiring, during a test."""
    monkeypatch.setattr(no_listener_cache, "NO_LISTENER_TTL", 120.0)
    monkeypatch.setattr(no_listener_cache, "PROBE_INTERVAL", 60.0)


async def let_event_return(publisher: Publisher) -> None:
    """Send an event that the broker returns, so that the cache has its key."""
    await publisher.publish(job(), HOT)
    send_event(publisher, 0)
    await publisher.probe()
    assert STARTED_EVENT in publisher._no_listeners._entries


@pytest.mark.usefixtures("no_probes")
async def test_after_a_returned_event_others_with_its_key_are_not_sent(
    lanes: TestBroker, sent_keys: list[str]
) -> None:
    async with Publisher(broker_settings(lanes)) as publisher:
        await let_event_return(publisher)
        sent_keys.clear()
        for number in range(100):
            send_event(publisher, number)
        publisher.send_soon(*STARTED_EVENT, lambda: pytest.fail("encoded, and not sent"))
        assert sent_keys == []
        send_event(publisher, 0, "succeeded")  # another key: somebody may listen to that alone
        assert sent_keys == ["succeeded.hot.crawl"]


async def test_one_event_at_a_time_probes_for_a_new_listener(
    lanes: TestBroker, sent_keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(no_listener_cache, "NO_LISTENER_TTL", 120.0)
    monkeypatch.setattr(no_listener_cache, "PROBE_INTERVAL", 0.0)
    async with Publisher(broker_settings(lanes)) as publisher:
        await let_event_return(publisher)
        for _ in range(3):
            sent_keys.clear()
            for number in range(100):
                send_event(publisher, number)
            assert sent_keys == ["started.hot.crawl"]
            await publisher.probe()  # confirmed after the event
        async with listening(lanes):
            send_event(publisher, 0)
            await publisher.probe()
            sent_keys.clear()
            for number in range(100):
                send_event(publisher, number)
            assert len(sent_keys) == 100


@asynccontextmanager
async def listening(lanes: TestBroker) -> AsyncIterator[None]:
    """Listen to all events."""
    async with connected(lanes.amqp_url, "listener") as connection:
        queue = await (await connection.channel()).declare_queue(exclusive=True)
        await queue.bind(EVENTS_EXCHANGE, "#")
        yield


async def test_a_feed_gets_every_event_once_it_listens(
    lanes: TestBroker,
) -> None:
    received: list[int] = []

    class RecordingFeed(EventFeed):
        def deliver(self, event: Any) -> None:
            received.append(int(event.job_id))

    feed = RecordingFeed(broker_settings(lanes))
    background = TaskSupervisor(feed._log)
    sent_count, first_expected = 0, None
    async with Publisher(broker_settings(lanes)) as publisher:
        await let_event_return(publisher)
        background.start("event feed", feed.run)
        try:
            async with asyncio.timeout(10):
                while first_expected is None or sent_count < first_expected + 100:
                    if first_expected is None and feed.is_listening.is_set():
                        first_expected = sent_count + 1
                    sent_count += 1
                    send_event(publisher, sent_count)
                    await publisher.probe()  # waits until the broker has it
            await eventually(lambda: received and received[-1] == sent_count)
        finally:
            await background.close()
    assert received[-100:] == list(range(sent_count - 99, sent_count + 1))


async def test_the_cache_holds_no_more_than_max_entries(
    lanes: TestBroker,
) -> None:
    async with Publisher(broker_settings(lanes)) as publisher:
        await publisher.publish(job(), HOT)
        for number in range(MAX_ENTRIES + 50):
            announce(publisher, "dead", job_id="a", job_type=f"type{number}", lane="hot", attempt=1)
            if number % 100 == 0:
                await publisher.probe()
        await publisher.probe()
        assert 0 < len(publisher._no_listeners._entries) <= MAX_ENTRIES
