"""Addresses of brokers: one, or one for each node of a cluster.

`amqp://user:password@a:5672,b:5672,c:5672/vhost` is the same as the three whole addresses, one
after the other with commas between them. The nodes of a cluster share users, virtual hosts and
queues, so their addresses differ in host and port alone.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

MAX_NODES = 16
AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
_BETWEEN_WHOLE = re.compile(r"\s*,\s*(?=[a-zA-Z][a-zA-Z0-9+.-]*://)")


def nodes_of(address: str) -> tuple[str, ...]:
    """Return the whole address of each node, in the order in which they are named."""
    nodes: list[str] = []
    for whole in _BETWEEN_WHOLE.split(address.strip()):
        scheme, separator, rest = whole.partition("://")
        end = re.search(r"[/?#]|$", rest)
        authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
        login, at, hosts = authority.rpartition("@")
        nodes += [
            f"{scheme}{separator}{login}{at}{each.strip()}{tail}" for each in hosts.split(",")
        ]
    return tuple(dict.fromkeys(nodes))


def check_address(address: str, schemes: tuple[str, ...], example: str) -> str:
    """Check an address and return it unchanged. Raises ValueError, whose text quotes no part of the
    address: any part may belong to a password."""
    nodes = nodes_of(address)
    if len(nodes) > MAX_NODES:
        raise ValueError(f"names {len(nodes)} nodes; {MAX_NODES} at most")
    try:
        parts = [urlsplit(node) for node in nodes]
        ports = [each.port for each in parts]
    except ValueError:
        # Raised below, outside of this handler: the error's text quotes what it can't read, perhaps
        # a password.
        parts, ports = [], []
    if not ports or any(each.scheme not in schemes for each in parts):
        raise ValueError(
            f"write it as {example}, and @ : / , in a password as %40 %3A %2F %2C; "
            "several hosts with commas between them"
        )
    if len(nodes) > 1 and not all(each.hostname for each in parts):
        raise ValueError("there is a comma without a host before or after it")
    without_host = {
        (each.scheme, each.netloc.rpartition("@")[0], each.path, each.query) for each in parts
    }
    if len(without_host) > 1:
        raise ValueError(
            "its addresses differ in more than the host: the nodes of one cluster have the same "
            "user, password, virtual host and options"
        )
    return address


def display_address(address: str) -> str:
    """Return the hosts, ports and virtual host of an AMQP address, without its credentials, for
    display. The virtual host `/`, which is the default, is left out; of others, `%` and `/` stay
    encoded."""
    nodes = [urlsplit(node) for node in nodes_of(address)]
    hosts = [
        f"{each.hostname or 'localhost'}:{each.port or AMQP_PORTS.get(each.scheme, 5672)}"
        for each in nodes
    ]
    return f"{','.join(hosts)}{'' if vhost_of(address) == '/' else nodes[0].path}"


def without_login(address: str) -> str:
    """Return the scheme, hosts and ports of an address, without its credentials, for display."""
    nodes = [urlsplit(node) for node in nodes_of(address)]
    hosts = ",".join(each.netloc.rpartition("@")[2] for each in nodes)
    return f"{nodes[0].scheme}://{hosts}"


def vhost_of(address: str) -> str:
    """Return the virtual host of an address; `/` where it names none."""
    path = urlsplit(nodes_of(address)[0]).path
    return "/" if path in ("", "/") else unquote(path[1:])


def with_vhost(address: str, vhost: str) -> str:
    """Return the address of another virtual host of the same broker."""
    path = "/" + quote(vhost, safe="")
    return ",".join(urlsplit(node)._replace(path=path).geturl() for node in nodes_of(address))


def with_login(address: str, login: str) -> str:
    """Return the address with the login `user:password`, both percent-encoded."""
    parts = [urlsplit(node) for node in nodes_of(address)]
    return ",".join(
        each._replace(netloc=f"{login}@{each.netloc.rpartition('@')[2]}").geturl() for each in parts
    )
