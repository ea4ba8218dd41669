"""URLs from users are fetched from the open internet only, up to a size and a time limit."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpcore
import pytest

from switchyard.broker.tls import web_authorities
from switchyard.services.common.files.safe_http import (
    PARTS_PER_TURN,
    Address,
    FetchFailed,
    FetchRefused,
    SsrfGuard,
    fetching,
    is_public,
)
from switchyard.services.common.files.webhook_sender import post


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("127.8.9.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("192.0.0.192", False),
        ("192.88.99.1", False),
        ("64:ff9b:1::7f00:1", False),
        ("2606:2800:220:1:0:5efe:7f00:1", False),
        ("2606:2800:220:1:200:5efe:a9fe:a9fe", False),
        ("2606:2800:220:1:0:5efe:5db8:d822", True),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_only_addresses_of_the_open_internet_are_public(address: str, expected: bool):
    assert is_public(ipaddress.ip_address(address)) is expected


@dataclass
class Web:
    """A server that answers paths with raw HTTP, and records the requested paths."""

    answers: dict[str, bytes] = field(default_factory=dict)
    requested_paths: list[str] = field(default_factory=list)
    port: int = 0
    endless: bytes = b""
    """Sent after the answer, again and again, until the client closes the connection."""
    pause: float = 0
    """Seconds between two of these."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            self.requested_paths.append(path)
            writer.write(self.answers.get(path, b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"))
            await writer.drain()
            while self.endless:
                writer.write(self.endless)
                await writer.drain()
                await asyncio.sleep(self.pause)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def web(**answers: bytes) -> AsyncIterator[Web]:
    site = Web({f"/{name}": answer for name, answer in answers.items()})
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        site.port = server.sockets[0].getsockname()[1]
        yield site


def only_127_0_0_1(address: Address) -> bool:
    """Allow one address, which stands for the open internet."""
    return str(address) == "127.0.0.1"


@dataclass
class ChangingResolver:
    """A resolver whose answers change."""

    answers: list[list[str]]
    lookups: int = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.lookups += 1
        return self.answers[min(self.lookups, len(self.answers)) - 1]


async def fetch(
    url: str, guard: SsrfGuard | None = None, max_bytes: int = 1000, timeout: float = 10
):
    async with fetching(url, max_bytes=max_bytes, timeout=timeout, guard=guard) as fetched:
        return b"".join([part async for part in fetched.parts])


def ok_response(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), lines, body)


def redirect_to(url: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n".encode()


GUARD = SsrfGuard(is_allowed=only_127_0_0_1)
"""Takes this machine for the open internet."""


async def test_a_redirect_is_followed():
    async with web(paper=redirect_to("/there"), there=ok_response(b"hello")) as server:
        assert await fetch(f"http://127.0.0.1:{server.port}/paper", GUARD) == b"hello"
        assert server.requested_paths == ["/paper", "/there"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "127.1", "[::ffff:127.0.0.1]"]
)
async def test_this_machine_is_never_fetched_from(host: str):
    async with web(secret=ok_response(b"secret")) as server:
        with pytest.raises(FetchRefused, match="open internet"):
            await fetch(f"http://{host}:{server.port}/secret")
        assert not server.requested_paths


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://example.org/x",
        "gopher://example.org/x",
        "http://user:password@example.org/",
        "http:///x",
        "not a url",
        "http://[::1",
        "http://exa\x00mple.org/",
        "//example.org/x",
    ],
)
async def test_other_schemes_and_invalid_urls_are_refused(url: str):
    with pytest.raises(FetchRefused):
        await fetch(url)


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2:{port}/secret", "http://localhost.:{port}/secret", "file:///x"]
)
async def test_a_redirect_to_a_forbidden_address_is_refused(target: str):
    names = {"localhost.": ["127.0.0.3"]}

    async def resolve(host: str, port: int) -> Sequence[str]:
        return names.get(host, [host])

    async with web(paper=b"", secret=ok_response(b"secret")) as server:
        server.answers["/paper"] = redirect_to(target.format(port=server.port))
        guard = SsrfGuard(resolve=resolve, is_allowed=only_127_0_0_1)
        with pytest.raises(FetchRefused):
            await fetch(f"http://127.0.0.1:{server.port}/paper", guard)
        assert server.requested_paths == ["/paper"]


async def test_the_connection_goes_to_the_checked_address():
    resolver = ChangingResolver([["127.0.0.1"], ["10.0.0.1"]])
    async with web(paper=ok_response(b"hello")) as server:
        guard = SsrfGuard(resolve=resolver, is_allowed=only_127_0_0_1)
        assert await fetch(f"http://paper.example:{server.port}/paper", guard) == b"hello"
        assert resolver.lookups == 1


async def test_the_address_of_a_name_is_checked_at_each_connection():
    resolver = ChangingResolver([["127.0.0.1"], ["10.0.0.1"]])
    async with web(paper=b"", secret=ok_response(b"secret")) as server:
        url = f"http://paper.example:{server.port}"
        server.answers["/paper"] = redirect_to(f"{url}/secret")
        with pytest.raises(FetchRefused, match="open internet"):
            await fetch(f"{url}/paper", SsrfGuard(resolve=resolver, is_allowed=only_127_0_0_1))
        assert (resolver.lookups, server.requested_paths) == (2, ["/paper"])


async def test_a_name_with_one_private_address_among_others_is_refused():
    guard = SsrfGuard(
        resolve=ChangingResolver([["127.0.0.1", "10.0.0.1"]]), is_allowed=only_127_0_0_1
    )
    with pytest.raises(FetchRefused):
        await fetch("http://paper.example/", guard)


async def test_redirects_are_limited():
    async with web(paper=redirect_to("/paper")) as server:
        with pytest.raises(FetchRefused, match="redirects"):
            await fetch(f"http://127.0.0.1:{server.port}/paper", GUARD)
        assert len(server.requested_paths) == 6


@pytest.mark.parametrize("announced", [b"Content-Length: 100000\r\n", b""])
async def test_no_more_bytes_are_read_than_allowed(announced: bytes):
    async with web(paper=b"HTTP/1.1 200 OK\r\n" + announced + b"\r\n") as server:
        server.endless = bytes(500)
        with pytest.raises(FetchRefused, match="1,000 bytes"):
            await fetch(f"http://127.0.0.1:{server.port}/paper", GUARD)


async def test_a_server_that_sends_slowly_is_given_up():
    async with web(paper=b"HTTP/1.1 200 OK\r\n\r\n") as server:
        server.endless, server.pause = b".", 0.05
        began = time.monotonic()
        with pytest.raises(FetchFailed, match=r"0\.5 s"):
            await fetch(f"http://127.0.0.1:{server.port}/paper", GUARD, timeout=0.5)
        assert time.monotonic() - began < 20, "the response has no end"


async def test_a_body_in_chunks_of_one_byte_lets_other_tasks_run():
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000
    turns_of_others, longest_run = 0, 0

    async def take_turns() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    async with web(paper=body + b"0\r\n\r\n") as server:
        others = asyncio.create_task(take_turns())
        url = f"http://127.0.0.1:{server.port}/paper"
        async with fetching(url, max_bytes=30_000, timeout=60, guard=GUARD) as fetched:
            run = parts = 0
            async for _ in fetched.parts:
                parts, run = parts + 1, run + 1
                if turns_of_others:
                    longest_run, run, turns_of_others = max(longest_run, run), 0, 0
        others.cancel()
    assert parts == 20_000
    assert longest_run <= PARTS_PER_TURN


async def test_the_authorities_are_loaded_once_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
):
    threads: list[int] = []
    load = httpcore.default_ssl_context

    def record_thread_and_load() -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load()

    web_authorities.cache_clear()
    monkeypatch.setattr(httpcore, "default_ssl_context", record_thread_and_load)
    monkeypatch.setattr("httpcore._async.connection.default_ssl_context", record_thread_and_load)

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for _ in range(3):
            with pytest.raises(FetchFailed):
                await fetch(url, GUARD, timeout=60)
            with pytest.raises(FetchFailed):
                await post(url, b"{}", headers={}, timeout=60, guard=GUARD)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_a_compressed_answer_is_refused():
    async with web(paper=ok_response(b"\x1f\x8b", b"Content-Encoding: gzip")) as server:
        with pytest.raises(FetchRefused, match="compresses its answer"):
            await fetch(f"http://127.0.0.1:{server.port}/paper", GUARD)


async def test_errors_tell_temporary_failures_from_refusals():
    busy = b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    async with web(busy=busy, cut=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n...") as server:
        url = f"http://127.0.0.1:{server.port}"
        with pytest.raises(FetchFailed) as failed:
            await fetch(f"{url}/busy", GUARD)
        assert failed.value.after == 7
        with pytest.raises(FetchFailed):
            await fetch(f"{url}/cut", GUARD)
        with pytest.raises(FetchRefused, match="404"):
            await fetch(f"{url}/nothing", GUARD)
    with pytest.raises(FetchFailed):
        await fetch(f"{url}/busy", GUARD)
    with pytest.raises(FetchFailed, match="resolved"):
        await fetch("http://no-such-name.invalid/")
