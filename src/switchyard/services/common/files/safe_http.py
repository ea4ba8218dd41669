"""Fetch a user's URL without being led into our own network.

The name is resolved once, all its addresses are checked, and the connection goes to one of them: a
name that resolves to another address later gains nothing. Redirects are connections like the first.
Proxies of the environment are not used: they would resolve the name again.

For known servers there is `uncompressed_client`: 300 bytes that were compressed three times become
4 GB in one step, before a limit can stop them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from switchyard.broker.tls import authorities, web_authorities
from switchyard.services.common.durations import parse_retry_after
from switchyard.services.common.errors import PermanentError, RetryableError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

MAX_REDIRECTS = 5
CONNECT_TIMEOUT = 10.0
"""Seconds to connect, and seconds that a sender may be silent."""
PARTS_PER_TURN = 100
"""Parts of a body that are read before other tasks run: of one byte each, 10,000 arrive together,
and hold the event loop for more than a tenth of a second."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ISATAP = frozenset({0x5EFE, 0x0200_5EFE})
_INTERNAL_RANGES = tuple(
    ipaddress.ip_network(each)
    for each in (
        "168.63.129.16/32",  # of every machine at Azure: its platform
        "192.0.0.0/24",  # for protocols between machine and network; at Oracle for metadata
        "192.88.99.0/24",  # relays of 6to4
        "64:ff9b:1::/48",  # translators of one's own network
        "3fff::/20",
        "5f00::/16",
    )
)
"""Address ranges that lead inward or nowhere, and that not every Python version knows."""
_SUCCESS = range(200, 300)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class FetchRefused(PermanentError):
    """The URL is not fetched, or its content can't be used; trying again would not help."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        """The server's status, if it answered."""
        super().__init__(message)


class NotPublic(FetchRefused):
    """The address is not public, and is not trusted by the guard."""


class FetchMoved(FetchRefused):
    """The URL redirects more often than is followed. The caller decides whether to fetch `target`,
    which may be anywhere."""

    def __init__(self, target: str, followed: int) -> None:
        self.target = target
        super().__init__(f"more than {followed} redirects, the last to {target[:300]}")


class FetchFailed(RetryableError):
    """The server can't be reached, is too slow, or says that it can't answer now."""

    def __init__(
        self, message: str, *, after: float | None = None, status: int | None = None
    ) -> None:
        self.status = status
        """The server's status, if it answered."""
        super().__init__(message, after=after)


def is_public(address: Address) -> bool:
    """Return whether an address is on the open internet: not one of this machine, a private
    network, a link, a metadata service or a multicast group, nor the IPv6 form of such an IPv4
    address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded_ipv4(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    if any(address in each for each in _INTERNAL_RANGES):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that a translator would make of an IPv6 address."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    is_tunnel = int(address) >> 32 & 0xFFFF_FFFF in _ISATAP
    if address in _NAT64 or int(address) >> 32 == 0 or is_tunnel:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as the system resolves it."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in answers))


@dataclass(frozen=True, slots=True)
class SsrfGuard:
    """Decides where connections may go."""

    resolve: Resolve = resolve
    is_allowed: Callable[[Address], bool] = is_public
    trusted: frozenset[tuple[str, int]] = frozenset()
    """Hosts and ports that the operator has named in the settings: they need not be public."""

    async def address_of(self, host: str, port: int) -> str:
        """Return a checked address of a name. Raises NotPublic if any address of the name is not on
        the open internet: there is no honest reason for a mixture."""
        try:
            addresses = await self.resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise FetchFailed(f"the name {host!r} can't be resolved") from error
        for address in addresses if (host, port) not in self.trusted else ():
            if not self.is_allowed(ipaddress.ip_address(address)):
                raise NotPublic(f"{host!r} is not an address of the open internet")
        if not addresses:
            raise FetchFailed(f"the name {host!r} has no address")
        return addresses[0]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to the address that the guard has checked. TLS still verifies the name."""

    def __init__(self, guard: SsrfGuard) -> None:
        self._guard = guard
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        address = await self._guard.address_of(host, port)
        return await self._network.connect_tcp(
            address, port, timeout, local_address, socket_options
        )

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise FetchRefused("sockets of this machine are not fetched from")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def guarded_pool(guard: SsrfGuard) -> httpcore.AsyncConnectionPool:
    """Make a pool of connections that go only where the guard allows."""
    # A thread, and once: httpcore would load them on the event loop for each connection.
    tls = await asyncio.to_thread(web_authorities)
    return httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=GuardedBackend(guard))


@dataclass(frozen=True, slots=True)
class FetchedResponse:
    """An answer whose headers have arrived."""

    url: str
    """The final URL, after redirects."""
    status: int
    """200 to 299; or 304, where `headers` made the request conditional."""
    headers: Mapping[str, str]
    """Names in lower case."""
    parts: AsyncIterator[bytes]
    """The content as it comes. Raises FetchRefused beyond the limit, FetchFailed."""

    @property
    def content_type(self) -> str:
        """The type that the server states; only the content tells what it is."""
        return self.headers.get("content-type", "")


@asynccontextmanager
async def fetching(
    url: str,
    *,
    max_bytes: int,
    timeout: float,
    guard: SsrfGuard | None = None,
    headers: Mapping[str, str] | None = None,
    max_redirects: int = MAX_REDIRECTS,
) -> AsyncIterator[FetchedResponse]:
    """Get a URL (http or https) within `timeout` seconds in all, at most `max_bytes` of it.

    Raises FetchRefused, FetchFailed, or FetchMoved after `max_redirects`.
    """
    limit = asyncio.timeout(timeout)
    try:
        async with limit, await guarded_pool(guard or SsrfGuard()) as pool:
            target = parse_url(url)
            for _ in range(max_redirects + 1):
                async with _get(pool, target, headers or {}) as response:
                    if response.status in _REDIRECTS:
                        target = parse_url(header_of(response, b"location"), target)
                        continue
                    _check_response(response, max_bytes, bool(headers))
                    parts = _limited_body(response, max_bytes)
                    yield FetchedResponse(
                        str(target), response.status, _headers_of(response), parts
                    )
                    return
            raise FetchMoved(str(target), max_redirects)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the caller's own
        raise FetchFailed(f"not answered within {timeout:g} s") from error


@asynccontextmanager
async def _get(
    pool: httpcore.AsyncConnectionPool, target: httpx.URL, request_headers: Mapping[str, str]
) -> AsyncIterator[httpcore.Response]:
    limits = dict.fromkeys(("connect", "read", "write", "pool"), CONNECT_TIMEOUT)
    # A packed body could grow beyond every limit while it is unpacked.
    headers = [
        ("Host", target.netloc.decode()),
        ("Accept-Encoding", "identity"),
        *request_headers.items(),
    ]
    try:
        async with pool.stream(
            "GET", str(target), headers=headers, extensions={"timeout": limits}
        ) as response:
            yield response
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise FetchFailed(f"{target.host}: {type(error).__name__}") from error


def parse_url(url: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse a URL and check its form; the guard checks its host later. Raises FetchRefused."""
    try:
        parsed = httpx.URL(url) if base is None else base.join(url)
        host = parsed.host  # names of other scripts are decoded here
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise FetchRefused("not a URL") from error
    if parsed.scheme not in ("http", "https") or not host:
        raise FetchRefused("only http and https URLs are fetched")
    if parsed.port is not None and not 0 < parsed.port < 65_536:
        raise FetchRefused(f"there is no port {parsed.port}")
    if parsed.userinfo:
        raise FetchRefused("URLs with a user or password are not fetched")
    return parsed


def _check_response(response: httpcore.Response, max_bytes: int, conditional: bool) -> None:
    if response.status == 304 and conditional:
        return
    if response.status not in _SUCCESS:
        reason = f"the server answers {response.status}"
        if response.status in (408, 425, 429) or response.status >= 500:
            raise FetchFailed(
                reason,
                after=requested_delay(response),
                status=response.status,
            )
        raise FetchRefused(reason, status=response.status)
    if header_of(response, b"content-encoding") not in ("", "identity"):
        raise FetchRefused("the server compresses its answer although it was asked not to")
    announced = header_of(response, b"content-length")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)


def requested_delay(response: httpcore.Response) -> float | None:
    """Return the seconds of an answer's Retry-After; None where it does not ask for a delay."""
    return parse_retry_after(header_of(response, b"retry-after"), date=header_of(response, b"date"))


async def _limited_body(response: httpcore.Response, max_bytes: int) -> AsyncIterator[bytes]:
    size = parts = 0
    async for part in response.aiter_stream():
        size += len(part)
        parts += 1
        if not parts % PARTS_PER_TURN:
            await asyncio.sleep(0)
        if size > max_bytes:
            raise _too_large(max_bytes)
        yield part


def _too_large(max_bytes: int) -> FetchRefused:
    return FetchRefused(f"more than the {max_bytes:,} bytes allowed")


def _headers_of(response: httpcore.Response) -> dict[str, str]:
    return {
        key.decode("latin-1").lower(): value.decode("latin-1") for key, value in response.headers
    }


def header_of(response: httpcore.Response, name: bytes) -> str:
    """Return a header of an answer, by its name in lower case; empty if it is missing."""
    return next(
        (value.decode("latin-1") for key, value in response.headers if key.lower() == name), ""
    )


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of a URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)


def uncompressed_client(**options: Any) -> httpx.AsyncClient:
    """Make an `httpx.AsyncClient` with these options that asks for uncompressed answers; a
    compressed one raises httpx.DecodingError before any of it is read."""
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    return httpx.AsyncClient(
        headers=headers,
        event_hooks={"response": [_refuse_compressed]},
        verify=authorities(),
        **options,
    )


async def _refuse_compressed(response: httpx.Response) -> None:
    if response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise httpx.DecodingError(
            "the server compresses its answer although it was asked not to",
            request=response.request,
        )
