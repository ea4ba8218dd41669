"""Events that nobody listens to are not sent, and whoever listens hears all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from switchyard.broker.lanes import EVENTS_EXCHANGE
from switchyard.broker.publish import no_listener_cache as unheard
from switchyard.broker.publish.no_listener_cache import MAX_ENTRIES
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.connection import connected
from switchyard.services.engine.monitoring.job_events import EventFeed, announce
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.publishing import HOT, broker_settings, job

KIND = (EVENTS_EXCHANGE, "started.hot.crawl")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The routing keys of all events that have left."""
    keys: list[str] = []
    publish = PipelinedChannel.publish

    def watched(
        channel: PipelinedChannel, exchange: str, routing_key: str, *args: Any, **options: Any
    ) -> asyncio.Future[None]:
        if exchange == EVENTS_EXCHANGE:
            keys.append(routing_key)
        return publish(channel, exchange, routing_key, *args, **options)

    monkeypatch.setattr(PipelinedChannel, "publish", watched)
    return keys


def tell(publisher: Publisher, number: int, event: str = "started") -> None:
    announce(publisher, event, job_id=str(number), job_type="crawl", lane="hot", attempt=number + 1)


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked again, and no rest ends, by the clock of a test."""
    monkeypatch.setattr(unheard, "NO_LISTENER_TTL", 120.0)
    monkeypatch.setattr(unheard, "PROBE_INTERVAL", 60.0)


async def unheard_once(publisher: Publisher) -> None:
    """One event has come back."""
    await publisher.publish(job(), HOT)
    tell(publisher, 0)
    await publisher.probe()
    assert KIND in publisher._no_listeners._entries


@pytest.mark.usefixtures("long_rest")
async def test_an_event_that_came_back_keeps_others_of_its_kind_from_being_sent(
    lanes: TestBroker, sent: list[str]
) -> None:
    async with Publisher(broker_settings(lanes)) as publisher:
        await unheard_once(publisher)
        sent.clear()
        for number in range(100):
            tell(publisher, number)
        publisher.send_soon(*KIND, lambda: pytest.fail("made, and not sent"))
        assert sent == []
        tell(publisher, 0, "succeeded")  # somebody may listen to the ends alone
        assert sent == ["succeeded.hot.crawl"]


async def test_one_at_a_time_is_sent_to_see_whether_somebody_listens_now(
    lanes: TestBroker, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unheard, "NO_LISTENER_TTL", 120.0)
    monkeypatch.setattr(unheard, "PROBE_INTERVAL", 0.0)
    async with Publisher(broker_settings(lanes)) as publisher:
        await unheard_once(publisher)
        for _ in range(3):
            sent.clear()
            for number in range(100):
                tell(publisher, number)
            assert sent == ["started.hot.crawl"]
            await publisher.probe()  # confirmed after it
        async with somebody_listening(lanes):
            tell(publisher, 0)
            await publisher.probe()
            sent.clear()
            for number in range(100):
                tell(publisher, number)
            assert len(sent) == 100


@asynccontextmanager
async def somebody_listening(lanes: TestBroker) -> AsyncIterator[None]:
    """Somebody listens."""
    async with connected(lanes.amqp_url, "listener") as connection:
        queue = await (await connection.channel()).declare_queue(exclusive=True)
        await queue.bind(EVENTS_EXCHANGE, "#")
        yield


async def test_a_feed_that_listens_hears_every_event_although_nobody_did_before(
    lanes: TestBroker,
) -> None:
    heard: list[int] = []

    class Hearing(EventFeed):
        def deliver(self, event: Any) -> None:
            heard.append(int(event.job_id))

    feed = Hearing(broker_settings(lanes))
    background = TaskSupervisor(feed._log)
    told, first = 0, None
    async with Publisher(broker_settings(lanes)) as publisher:
        await unheard_once(publisher)
        background.start("event feed", feed.run)
        try:
            async with asyncio.timeout(10):
                while first is None or told < first + 100:
                    if first is None and feed.is_listening.is_set():
                        first = told + 1
                    told += 1
                    tell(publisher, told)
                    await publisher.probe()  # as fast as the broker takes them
            await eventually(lambda: heard and heard[-1] == told)
        finally:
            await background.close()
    assert heard[-100:] == list(range(told - 99, told + 1))


async def test_no_more_than_so_many_keys_are_remembered(
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
