"""A node that takes messages and confirms none is left for another one."""

import asyncio
from urllib.parse import urlsplit

import pytest

from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.publish.blocking import BlockingPublisher
from switchyard.broker.publish.outcome import Accepted
from switchyard.broker.publish.publisher import Publisher
from tests.support.brokers import TestBroker
from tests.support.publishing import HOT, declare, job, settings_of
from tests.support.tcp_proxy import TcpProxy

TRIES = 40
"""Connections, each to one of the two hosts by chance, until one goes by the proxy."""


def make_url_of_both(proxy: TcpProxy, broker: TestBroker) -> str:
    """Return a URL of two hosts: the node by the proxy, and the node itself."""
    return broker.amqp_url.replace("@", f"@127.0.0.1:{proxy.port},", 1)


def port_of(broker: TestBroker) -> int:
    return urlsplit(broker.amqp_url).port or 5672


async def test_the_publisher_goes_on_with_another_node(broker310: TestBroker) -> None:
    await declare(broker310)
    async with TcpProxy("127.0.0.1", port_of(broker310)) as proxy:
        settings = settings_of(make_url_of_both(proxy, broker310), confirm_timeout=0.5)
        for _ in range(TRIES):  # the order of the hosts is random
            async with Publisher(settings) as publisher:
                assert isinstance(await publisher.publish(job(), HOT), Accepted)
                if not proxy.connections:
                    continue
                proxy.pause("to_client")
                with pytest.raises(BrokerUnavailable, match="no confirm") as caught:
                    await publisher.publish(job(), HOT)
                assert caught.value.maybe_accepted
                assert isinstance(await publisher.publish(job(), HOT), Accepted)
                return
    pytest.fail("it never took the proxy")


async def test_the_blocking_publisher_goes_on_with_another_node(broker310: TestBroker) -> None:
    await declare(broker310)

    async with TcpProxy("127.0.0.1", port_of(broker310)) as proxy:
        settings = settings_of(make_url_of_both(proxy, broker310), confirm_timeout=0.5)
        for _ in range(TRIES):
            with BlockingPublisher(settings) as publisher:
                await asyncio.to_thread(publisher.publish, job(), HOT)
                if not proxy.connections:
                    continue
                proxy.pause("to_client")
                with pytest.raises(BrokerUnavailable, match="no confirm"):
                    await asyncio.to_thread(publisher.publish, job(), HOT)
                await asyncio.to_thread(publisher.publish, job(), HOT)
                proxy.resume()
                return
    pytest.fail("it never took the proxy")
