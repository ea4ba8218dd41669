"""Keep sockets from forked children, whose copies of them are of no use there.

The child's copy of a socket is the same connection. If both wrote on it the broker would hear two
voices at once; and to take it out of a copied `epoll` takes it out of the parent's. So in the child
the copies of a broker's sockets lead nowhere from the fork on, whatever touches or
garbage-collects them later; a publisher that is used in the child opens new connections.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Connected(Protocol):
    """An object with a socket."""

    def fileno(self) -> int:
        """Return the socket's file descriptor; negative where there is none."""
        ...


class Owner:
    """The process that made an object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the current process is that one, and no child of it."""
        return self._pid == os.getpid()


def keep_from_children(connected: Connected) -> None:
    """After each fork, point the child's copy of this socket to /dev/null."""
    _tracked_connections().add(connected)


@cache
def _tracked_connections() -> WeakSet[Connected]:
    connections: WeakSet[Connected] = WeakSet()
    os.register_at_fork(after_in_child=lambda: _point_to_null(connections))
    return connections


def _point_to_null(connections: WeakSet[Connected]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connected in list(connections):
        # Not closed: its file descriptor would soon be that of something else.
        with suppress(OSError, ValueError, AttributeError):
            if (descriptor := connected.fileno()) >= 0:
                os.dup2(nowhere, descriptor, inheritable=False)
    connections.clear()
    os.close(nowhere)
