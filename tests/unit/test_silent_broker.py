"""A peer that takes the connection and then says nothing: nobody waits for its heartbeats."""

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


async def test_a_connection_on_which_no_channel_opens_is_ended_and_another_one_opened() -> None:
    with listening(falls_silent_once_open) as url:
        reconnector = Reconnector(url, "test", structlog.get_logger())
        first = await reconnector.connection_now()
        with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
            await open_channel(first, confirms=False, limit=0.2)
        assert first.is_closed
        assert await reconnector.connection_now() is not first
        await reconnector.close()


async def test_a_question_that_is_not_answered_in_time_fails() -> None:
    with listening(falls_silent_with_a_channel) as url:
        async with connected(url, "test") as connection:
            channel = await open_channel(underlying(connection), confirms=False)
            with pytest.raises(TimeoutError, match=r"no answer within 0\.2 s"):
                await read_queue_size(channel, "any", limit=0.2)


async def scans(url: str) -> None:
    async with scanning(url):
        pass


async def looks_into_queues(url: str) -> None:
    async with queue_depths(url) as depth:
        await depth("any")


async def asks(url: str) -> None:
    await query_queues(url, ["any"])


async def test_scans_and_questions_take_a_few_seconds() -> None:
    async def fails(work: Callable[[str], Awaitable[None]], url: str) -> None:
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await work(url)

    with listening(falls_silent_once_open) as one, listening(falls_silent_with_a_channel) as other:
        works = itertools.product((scans, looks_into_queues, asks), (one, other))
        async with asyncio.timeout(ANSWER_TIMEOUT + 5):
            await asyncio.gather(*(fails(work, url) for work, url in works))


async def test_many_publishes_wait_for_one_attempt_to_connect() -> None:
    """The silent broker costs all of them one time-out, not one each in turn."""
    with listening(says_nothing) as url:
        settings = BrokerSettings(amqp_url=SecretStr(url))
        job = JobMessage(job_type="crawl", payload={})
        async with Publisher(settings) as publisher, asyncio.timeout(CONNECT_TIMEOUT + 1):
            publishes = (publisher.publish(job, "hot.crawl") for _ in range(20))
            results = await asyncio.gather(*publishes, return_exceptions=True)
    assert [type(result) for result in results] == [BrokerUnavailable] * 20
