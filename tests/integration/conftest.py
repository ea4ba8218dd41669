from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.system import System, open_system, workers_publish_by
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    """A system on RabbitMQ 3.10 and SQLite, for tests to which their kind makes no difference."""
    async with open_system(broker310, sqlite_url) as opened:
        yield opened


@pytest.fixture
async def proxy(broker310: TestBroker) -> AsyncIterator[TcpProxy]:
    """A TCP proxy to the broker."""
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as opened:
        yield opened


@pytest.fixture
async def publishing_proxy(
    broker310: TestBroker, monkeypatch: pytest.MonkeyPatch, proxy: TcpProxy
) -> TcpProxy:
    """A proxy for the connections on which workers publish, and for no others."""
    workers_publish_by(proxy, broker310, monkeypatch)
    return proxy
