"""A broker that accepts the connection and then is silent: calls end by their own time-outs."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from socket import socket

import pytest
import structlog
from pamqp import commands as spec
from pamqp import frame as pamqp_frame
from pydantic import SecretStr

from switchyard.broker.dead.scan import scanning
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import CONNECT_TIMEOUT, connected, underlying
from switchyard.broker.wire.depths import query_queues, queue_depths, read_queue_size
from switchyard.broker.wire.failures import ANSWER_TIMEOUT
from switchyard.broker.wire.reconnector import Reconnector
from tests.support.peers import falls_silent_once_open, listening, open_, says_nothing


def falls_silent_with_a_channel(peer: socket) -> None:
    open_(peer)
    peer.recv(1_000)
    peer.sendall(pamqp_frame.marshal(spec.Channel.OpenOk(), 1))
    while peer.recv(1_000):
        continue


async def test_a_connection_on_which_no_channel_opens_is_closed_and_replaced() -> None:
    with listening(falls_silent_once_open) as url:
        reconnector = Reconnector(url, "test", structlog.get_logger())
        first = await reconnector.connection_now()
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            await open_channel(first, confirms=False, limit=0.2)
        assert first.is_closed
        assert await reconnector.connection_now() is not first
        await reconnector.close()


async def test_a_call_without_an_answer_times_out() -> None:
    with listening(falls_silent_with_a_channel) as url:
        async with connected(url, "test") as connection:
            channel = await open_channel(underlying(connection), confirms=False)
            with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
                await read_queue_size(channel, "any", limit=0.2)


async def scan(url: str) -> None:
    async with scanning(url):
        pass


async def read_depth(url: str) -> None:
    async with queue_depths(url) as depth:
        await depth("any")


async def query(url: str) -> None:
    await query_queues(url, ["any"])


async def test_scans_and_queries_fail_within_their_time_out() -> None:
    async def expect_error(operation: Callable[[str], Awaitable[None]], url: str) -> None:
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await operation(url)

    with (
        listening(falls_silent_once_open) as silent_connection,
        listening(falls_silent_with_a_channel) as silent_channel,
    ):
        operations_and_urls = itertools.product(
            (scan, read_depth, query), (silent_connection, silent_channel)
        )
        async with asyncio.timeout(ANSWER_TIMEOUT + 5):
            await asyncio.gather(
                *(expect_error(operation, url) for operation, url in operations_and_urls)
            )


async def test_many_publishes_wait_for_one_attempt_to_connect() -> None:
    """All publishes together wait for one time-out, not each for its own."""
    with listening(says_nothing) as url:
        settings = BrokerSettings(amqp_url=SecretStr(url))
        job = JobMessage(job_type="crawl", payload={})
        async with Publisher(settings) as publisher, asyncio.timeout(CONNECT_TIMEOUT + 1):
            publishes = (publisher.publish(job, "hot.crawl") for _ in range(20))
            results = await asyncio.gather(*publishes, return_exceptions=True)
    assert [type(result) for result in results] == [BrokerUnavailable] * 20
