"""Brokers with lanes for the publishers: with room, full, or behind a proxy."""

from collections.abc import AsyncIterator
from typing import cast

import aio_pika
import pytest

from switchyard.broker.lanes import DEAD_QUEUE
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from tests.support.brokers import TestBroker
from tests.support.publishing import (
    HOT,
    MAINTENANCE,
    PublisherType,
    ThreadedPublisher,
    broker_settings,
    declare,
    fill,
    settings_of,
    short_lanes,
)
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture(params=[Publisher, ThreadedPublisher], ids=["asyncio", "blocking"])
def publisher_type(request: pytest.FixtureRequest) -> PublisherType:
    """The asyncio publisher, then the blocking one."""
    return cast("PublisherType", request.param)


@pytest.fixture
async def lanes(broker: TestBroker) -> TestBroker:
    """A broker with all lanes."""
    await declare(broker)
    return broker


@pytest.fixture
async def full_lanes(broker: TestBroker) -> TestBroker:
    """A broker whose lanes hold three jobs each, and are full."""
    await declare(broker, short_lanes())
    async with Publisher(broker_settings(broker)) as publisher:
        for routing_key in (HOT, MAINTENANCE):
            await fill(publisher, routing_key)
    async with await aio_pika.connect(broker.amqp_url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(DEAD_QUEUE, ensure=False)).purge()
    return broker


@pytest.fixture
async def proxied(broker310: TestBroker) -> AsyncIterator[tuple[TcpProxy, BrokerSettings]]:
    """A proxy to a broker with all lanes, and settings that lead through it."""
    await declare(broker310)
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        yield proxy, settings_of(proxy.url(broker310.amqp_url), confirm_timeout=5)
