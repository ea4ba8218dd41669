"""Clients of a cluster: nodes that are switched off, frozen or wrong cost moments, not the work."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
import structlog
from pydantic import SecretStr

from switchyard.broker.addresses import nodes_of
from switchyard.broker.errors import BrokerAuthError, BrokerUnavailable, ManagementError
from switchyard.broker.management import http as management_http
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.publish.session import Session
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.connection import CONNECT_TIMEOUT, connect, connected
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.cli.system.free_ports import free_port
from tests.support.peers import (
    Peer,
    closes,
    lets_in,
    listening,
    refuses_the_credentials,
    says_nothing,
)

SLACK = 0.9
"""Seconds; less than what is asserted saves, and one connection of several may take longer."""
"""Seconds by which a busy machine may be late."""


@contextmanager
def nodes(*peers: Peer | None) -> Iterator[str]:
    """The address of nodes that behave so; None: nothing listens there."""
    with ExitStack() as stack:
        hosts = []
        for peer in peers:
            if peer is None:
                hosts.append(f"127.0.0.1:{free_port()}")
            else:
                hosts.append(stack.enter_context(listening(peer)).rpartition("@")[2].strip("/"))
        yield f"amqp://user:secret@{','.join(hosts)}/"


@contextmanager
def full_backlog() -> Iterator[str]:
    """A host that takes no connection and refuses none, as one that is switched off."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server, ExitStack() as stack:
        for _ in range(4):
            one = stack.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "away", [None, closes, says_nothing, refuses_the_credentials], ids=lambda each: str(each)[:20]
)
async def test_one_node_of_three_that_works_is_found_within_a_second(away: Peer | None) -> None:
    with nodes(away, away, lets_in) as url:
        took = []
        for _ in range(6):  # the order is one of chance
            started = time.monotonic()
            async with connected(url, "test") as connection:
                assert not connection.is_closed
            took.append(time.monotonic() - started)
        assert sorted(took)[-2] < 1 + SLACK


async def test_a_node_that_is_switched_off_costs_its_head_start() -> None:
    with full_backlog() as off, listening(lets_in) as works:
        url = works.replace("@", f"@{off},")
        reconnector = Reconnector(url, "test", structlog.get_logger())
        took = []
        for _ in range(8):
            started = time.monotonic()
            await reconnector.connection_now()
            await reconnector.close()
            took.append(time.monotonic() - started)
        assert sorted(took)[-2] < 0.3 + SLACK


@pytest.mark.parametrize("away", [None, says_nothing])
async def test_that_all_nodes_are_away_is_known_as_soon_as_of_one(away: Peer | None) -> None:
    with nodes(away, away, away, away) as url:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="any of its addresses") as caught:
            await connect(url, "test")
        assert time.monotonic() - started < 2.5 * CONNECT_TIMEOUT  # not four times
        assert all(
            each.rpartition("@")[2].strip("/") in str(caught.value) for each in nodes_of(url)
        )
        assert "secret" not in str(caught.value)


async def test_a_refusal_is_told_although_the_other_nodes_are_away() -> None:
    says = pytest.raises(BrokerAuthError, match="user or password in JOBS_AMQP_URL")
    with nodes(None, refuses_the_credentials, None) as url, says:
        await connect(url, "test")


async def test_what_is_cancelled_while_it_connects_leaves_nothing_behind() -> None:
    with nodes(says_nothing, says_nothing) as url:
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await connect(url, "test")
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("away", [None, says_nothing])
def test_the_blocking_publisher_finds_all_nodes_away_within_two_seconds(away: Peer | None) -> None:
    with nodes(away, away, away) as url:
        settings = BrokerSettings(amqp_url=SecretStr(url))
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"(127\.0\.0\.1:.*){3}") as caught:
            Session.connect(settings, "test")
        assert time.monotonic() - started < 2.5 * CONNECT_TIMEOUT  # not three times
        assert "secret" not in str(caught.value)


# --- the management API ---------------------------------------------------------------------------

THREE = "http://me:secret@a:1,b:2,c:3"


def one_works(request: httpx.Request) -> httpx.Response:
    if request.url.host != "b":
        raise httpx.ConnectError("refused", request=request)
    return httpx.Response(200, json={"rabbitmq_version": "4.3.6"})


async def test_the_management_client_asks_the_node_that_is_there_and_stays_with_it() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return one_works(request)

    async with ManagementClient(THREE, transport=httpx.MockTransport(answer)) as client:
        for _ in range(3):
            assert await client.version() == "4.3.6"
    assert asked[-3:] == ["b", "b", "b"]
    assert len(asked) <= 5


async def test_that_no_node_has_a_management_api_names_them_all() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    async with ManagementClient(THREE, transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(ManagementError, match=r"http://a:1 or http://b:2 or http://c:3"):
            await client.version()


@pytest.mark.parametrize(
    ("head", "says"),
    [(b"", "more than 1 MiB"), (b"Content-Encoding: gzip\r\n", "compresses its answers")],
)
async def test_an_answer_without_end_or_packed_is_given_up(
    monkeypatch: pytest.MonkeyPatch, head: bytes, says: str
) -> None:
    monkeypatch.setattr(management_http, "MAX_ANSWER_BYTES", 2**20)

    def answers(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head + b"\r\n")
        for _ in range(1 if head else 1000):
            peer.sendall(b"[" * 65_536)

    with listening(answers) as url:
        async with ManagementClient(url.replace("amqp", "http")) as client:
            with pytest.raises(ManagementError, match=re.escape(says)):
                await client.queues()


async def test_an_answer_that_drips_is_given_up_in_time() -> None:
    def answers(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            peer.sendall(b" ")
            time.sleep(0.05)

    with listening(answers) as url:
        async with ManagementClient(url.replace("amqp", "http"), timeout=0.2) as client:
            started = time.monotonic()
            with pytest.raises(ManagementError, match="did not answer in time"):
                await client.queues()
            assert time.monotonic() - started < 10  # the peer sends for ever
