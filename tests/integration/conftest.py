from collections.abc import AsyncIterator

import pytest

from tests.support.brokers import TestBroker
from tests.support.system import System, open_system, workers_publish_by
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    """A small system, where one kind of broker and of database says enough."""
    async with open_system(broker310, sqlite_url) as opened:
        yield opened


@pytest.fixture
async def proxy(broker310: TestBroker) -> AsyncIterator[TcpProxy]:
    """On somebody's way to the broker."""
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as opened:
        yield opened


@pytest.fixture
async def held_publisher(
    broker310: TestBroker, monkeypatch: pytest.MonkeyPatch, proxy: TcpProxy
) -> TcpProxy:
    """The proxy through which workers publish, and do nothing else."""
    workers_publish_by(proxy, broker310, monkeypatch)
    return proxy
