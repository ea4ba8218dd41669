"""Limit connections by address and not by name: one server can have any number of names."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class AddressLimiter:
    """Limits this process's concurrent connections to each network."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._taken: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def make(cls, max_connections: int) -> AsyncIterator[AddressLimiter]:
        """Make the limiter that all jobs of a process share (`ProcessResources.get`)."""
        yield cls(max_connections)

    @contextmanager
    def hold(self, address: str) -> Iterator[bool]:
        """Hold a connection to an address within the context. Yields False if all connections are
        taken."""
        network = network_of(address)
        if self._taken[network] >= self._max_connections:
            yield False
            return
        self._taken[network] += 1
        try:
            yield True
        finally:
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]


def network_of(address: str) -> str:
    """Return the network that one owner is assumed to have: an IPv4 address itself, or the /48 of
    an IPv6 address, which is the usual size that an owner is given (the smallest is a /64)."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 48), strict=False))
