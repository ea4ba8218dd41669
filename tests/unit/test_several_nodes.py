"""Clients of a cluster: nodes that are off, frozen or misconfigured delay them by little."""

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
"""Seconds by which a busy machine may be late. One connection of several may take even longer."""


@contextmanager
def serve_nodes(*peers: Peer | None) -> Iterator[str]:
    """Yield the address of nodes that behave so; at None, nothing listens."""
    with ExitStack() as stack:
        hosts = []
        for peer in peers:
            if peer is None:
                hosts.append(f"127.0.0.1:{free_port()}")
            else:
                hosts.append(stack.enter_context(listening(peer)).rpartition("@")[2].strip("/"))
        yield f"amqp://user:secret@{','.join(hosts)}/"


@contextmanager
def serve_full_backlog() -> Iterator[str]:
    """Yield a host that neither accepts nor refuses connections, like one that is switched off."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as server, ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(closing(socket.socket()))
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "unavailable_node",
    [None, closes, says_nothing, refuses_the_credentials],
    ids=lambda each: str(each)[:20],
)
async def test_the_one_working_node_of_three_is_found_within_a_second(
    unavailable_node: Peer | None,
) -> None:
    with serve_nodes(unavailable_node, unavailable_node, lets_in) as url:
        seconds = []
        for _ in range(6):  # the order of the nodes is random
            started = time.monotonic()
            async with connected(url, "test") as connection:
                assert not connection.is_closed
            seconds.append(time.monotonic() - started)
        assert sorted(seconds)[-2] < 1 + SLACK


async def test_a_node_that_is_switched_off_costs_a_short_delay() -> None:
    with serve_full_backlog() as dead_host, listening(lets_in) as working_url:
        url = working_url.replace("@", f"@{dead_host},")
        reconnector = Reconnector(url, "test", structlog.get_logger())
        seconds = []
        for _ in range(8):
            started = time.monotonic()
            await reconnector.connection_now()
            await reconnector.close()
            seconds.append(time.monotonic() - started)
        assert sorted(seconds)[-2] < 0.3 + SLACK


@pytest.mark.parametrize("unavailable_node", [None, says_nothing])
async def test_four_unavailable_nodes_take_no_longer_than_one(
    unavailable_node: Peer | None,
) -> None:
    with serve_nodes(unavailable_node, unavailable_node, unavailable_node, unavailable_node) as url:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="any of its addresses") as caught:
            await connect(url, "test")
        assert time.monotonic() - started < 2.5 * CONNECT_TIMEOUT  # not four times
        assert all(
            each.rpartition("@")[2].strip("/") in str(caught.value) for each in nodes_of(url)
        )
        assert "secret" not in str(caught.value)


async def test_a_refusal_is_raised_although_the_other_nodes_are_unavailable() -> None:
    refusal = pytest.raises(BrokerAuthError, match="user or password in JOBS_AMQP_URL")
    with serve_nodes(None, refuses_the_credentials, None) as url, refusal:
        await connect(url, "test")


async def test_a_cancelled_connect_leaves_no_task() -> None:
    with serve_nodes(says_nothing, says_nothing) as url:
        before = asyncio.all_tasks()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await connect(url, "test")
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("unavailable_node", [None, says_nothing])
def test_the_blocking_publisher_finds_all_nodes_unavailable_within_two_time_outs(
    unavailable_node: Peer | None,
) -> None:
    with serve_nodes(unavailable_node, unavailable_node, unavailable_node) as url:
        settings = BrokerSettings(amqp_url=SecretStr(url))
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match=r"(127\.0\.0\.1:.*){3}") as caught:
            Session.connect(settings, "test")
        assert time.monotonic() - started < 2.5 * CONNECT_TIMEOUT  # not three times
        assert "secret" not in str(caught.value)


# --- the management API ---------------------------------------------------------------------------

THREE_NODES = "http://me:secret@a:1,b:2,c:3"


def answer_as_node_b(request: httpx.Request) -> httpx.Response:
    if request.url.host != "b":
        raise httpx.ConnectError("refused", request=request)
    return httpx.Response(200, json={"rabbitmq_version": "4.3.6"})


async def test_the_management_client_finds_the_working_node_and_stays_with_it() -> None:
    requested_hosts = []

    def answer(request: httpx.Request) -> httpx.Response:
        requested_hosts.append(request.url.host)
        return answer_as_node_b(request)

    async with ManagementClient(THREE_NODES, transport=httpx.MockTransport(answer)) as client:
        for _ in range(3):
            assert await client.version() == "4.3.6"
    assert requested_hosts[-3:] == ["b", "b", "b"]
    assert len(requested_hosts) <= 5


async def test_the_error_for_unavailable_management_apis_names_all_nodes() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    async with ManagementClient(THREE_NODES, transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(ManagementError, match=r"http://a:1 or http://b:2 or http://c:3"):
            await client.version()


@pytest.mark.parametrize(
    ("header", "reason"),
    [(b"", "more than 1 MiB"), (b"Content-Encoding: gzip\r\n", "compresses its answers")],
)
async def test_an_endless_or_compressed_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, header: bytes, reason: str
) -> None:
    monkeypatch.setattr(management_http, "MAX_ANSWER_BYTES", 2**20)

    def answer(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + header + b"\r\n")
        for _ in range(1 if header else 1000):
            peer.sendall(b"[" * 65_536)

    with listening(answer) as url:
        async with ManagementClient(url.replace("amqp", "http")) as client:
            with pytest.raises(ManagementError, match=re.escape(reason)):
                await client.queues()


async def test_a_very_slow_answer_is_given_up_in_time() -> None:
    def answer(peer: socket.socket) -> None:
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            peer.sendall(b" ")
            time.sleep(0.05)

    with listening(answer) as url:
        async with ManagementClient(url.replace("amqp", "http"), timeout=0.2) as client:
            started = time.monotonic()
            with pytest.raises(ManagementError, match="did not answer in time"):
                await client.queues()
            assert time.monotonic() - started < 10  # the peer sends for ever
