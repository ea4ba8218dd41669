"""Let the kernel detect that the peer of a connection is cut off.

The kernel probes the peer by itself and gives the connection up, however busy this process is;
heartbeats take three times as long. This finds a network that is cut and a machine that is off, but
not a process that hangs on a machine that still answers: that is left to heartbeats.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

SILENCE_TIMEOUT = 10
"""Seconds without any packet from the peer after which a connection is lost."""

TCP_OPTIONS: Mapping[str, int] = MappingProxyType(
    {
        "TCP_KEEPIDLE": 4,
        "TCP_KEEPINTVL": 2,
        "TCP_KEEPCNT": 3,
        # While sent data is not acknowledged, the kernel sends no probes: this limits that time.
        "TCP_USER_TIMEOUT": SILENCE_TIMEOUT * 1000,
    }
)
"""Options by their names in the socket module, as pika takes them."""


class _Socket(Protocol):
    @property
    def family(self) -> int: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> object: ...


def set_tcp_user_timeout(sock: _Socket | None) -> None:
    """Have the kernel notice within SILENCE_TIMEOUT seconds that the peer is cut off, as far as
    this system can."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return  # a socket of this machine, as PostgreSQL may have
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_OPTIONS.items():
        option = getattr(socket, name, None)  # Linux has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
