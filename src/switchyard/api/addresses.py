"""Which addresses are this machine alone, and which are one client's: asked by the service and by
its client."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Tell whether that address, or name, is this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def client_at(host: str) -> str:
    """Name the client at an address, for limits: of IPv6 its network of 64 bits, which every
    customer of a provider has at least (RFC 6177), with 2^64 addresses to choose from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
