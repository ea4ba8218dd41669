"""Turns at an address: somebody who has one server can give it any number of names."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class AddressTurns:
    """How many connections of this process there are to each address at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._taken: Counter[str] = Counter()

    @classmethod
    @asynccontextmanager
    async def opened(cls, at_once: int) -> AsyncIterator[AddressTurns]:
        """Make the limiter that all jobs of a process share (`Shared.get`)."""
        yield cls(at_once)

    @contextmanager
    def one(self, address: str) -> Iterator[bool]:
        """Hold a turn at that address within the context; False if all are taken."""
        owner = owner_of(address)
        if self._taken[owner] >= self._at_once:
            yield False
            return
        self._taken[owner] += 1
        try:
            yield True
        finally:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]


def owner_of(address: str) -> str:
    """Whose it is, as far as an address says: of version 6, whoever has one has a network of them,
    the smallest of which that are given out are of 64 bits and the usual of 48."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 48), strict=False))
