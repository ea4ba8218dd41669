"""Send requests to the management API: to a node that answers, with bounds on the answer.

Credentials go into the `Authorization` header alone: never into an error's text or a log line.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from switchyard.broker.addresses import check_address, nodes_of
from switchyard.broker.errors import ManagementError
from switchyard.broker.tls import authorities

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Bytes of one answer at most: enough for all that is known of some 50,000 queues."""
REQUEST_TIMEOUT_FACTOR = 3
"""How many times the time-out of one step (a connect, a read) a whole request may take."""


class ManagementHttp:
    """One HTTP client for all nodes of the address, in random order.

    When a node can't be reached or drops the connection, this and all later requests go to the next
    node. Requests of a topology may be sent twice: each sets or removes by name.
    """

    def __init__(
        self, url: str, *, timeout: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        """Raises ManagementError for an invalid address."""
        try:
            check_address(url, ("http", "https"), "http://user:password@host:15672")
            parts = [urlsplit(node) for node in nodes_of(url)]
        except ValueError as error:
            # `from None`: others' messages quote what they can't read, perhaps a password.
            raise ManagementError(f"{_BAD_ADDRESS}: {error}") from None
        if not all(each.hostname for each in parts):
            raise ManagementError(f"{_BAD_ADDRESS}: write it as http://user:password@host:15672")
        self._bases = []
        for each in parts:
            host = f"[{each.hostname}]" if ":" in (each.hostname or "") else each.hostname
            port = f":{each.port}" if each.port else ""
            self._bases.append(f"{each.scheme}://{host}{port}{each.path}")
        random.shuffle(self._bases)
        self._limit = REQUEST_TIMEOUT_FACTOR * timeout
        self._client = httpx.AsyncClient(
            auth=(unquote(parts[0].username or "guest"), unquote(parts[0].password or "guest")),
            # Split between the nodes: finding all of them unreachable takes one timeout in total.
            timeout=httpx.Timeout(timeout, connect=timeout / len(parts)),
            # A packed answer could grow beyond every bound while it is unpacked.
            headers={"accept-encoding": "identity"},
            transport=transport,
            verify=_tls_context(parts),
        )

    @property
    def base(self) -> str:
        """The address, without credentials, of the node that requests go to now."""
        return self._bases[0]

    async def close(self) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> httpx.Response:
        """Send a request to the first node that can be reached; return its whole answer, whatever
        its status. `path` is below `/api`. Raises ManagementError."""
        all_nodes = " or ".join(sorted(self._bases))
        nodes_left = len(self._bases)
        while True:
            nodes_left -= 1
            try:
                async with asyncio.timeout(self._limit):
                    return await self._ask(method, path, params, body)
            except _AWAY as error:
                self._use_next_node()
                if nodes_left == 0:
                    raise ManagementError(
                        f"can't reach the management API at {all_nodes}: is the broker up, and the "
                        "management plugin enabled? rabbitmq-plugins enable rabbitmq_management"
                    ) from error
            except (httpx.TimeoutException, TimeoutError) as error:
                slow_node = self.base
                self._use_next_node()
                raise ManagementError(
                    f"the management API at {slow_node} did not answer in time: is the broker "
                    "overloaded, or behind a firewall?"
                ) from error

    async def _ask(
        self, method: str, path: str, params: Mapping[str, str] | None, body: Any
    ) -> httpx.Response:
        url = f"{self.base.rstrip('/')}/api{path}"
        async with self._client.stream(method, url, params=params, json=body) as answer:
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise ManagementError(
                    f"{self.base} compresses its answers, which was not asked for: set "
                    "JOBS_MANAGEMENT_URL to the management API itself"
                )
            content = bytearray()
            async for part in answer.aiter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    raise ManagementError(
                        f"the management API at {self.base} answers with more than "
                        f"{MAX_ANSWER_BYTES // 2**20} MiB: is it one? Check JOBS_MANAGEMENT_URL"
                    )
            return httpx.Response(
                answer.status_code,
                headers=answer.headers,
                content=bytes(content),
                request=answer.request,
            )

    def _use_next_node(self) -> None:
        self._bases.append(self._bases.pop(0))


_AWAY = (httpx.NetworkError, httpx.ProtocolError, httpx.ProxyError, httpx.ConnectTimeout)
_BAD_ADDRESS = "the management address in JOBS_MANAGEMENT_URL can't be used"


def _tls_context(nodes: Iterable[SplitResult]) -> ssl.SSLContext:
    """Return the TLS context for these nodes. Loading authorities takes 30 ms, so where no node has
    `https`, the context has none and trusts nobody."""
    if any(each.scheme == "https" for each in nodes):
        return authorities()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
