"""Keep sockets from forked children, whose copies of them are of no use there.

The child's copy of a socket is the same connection. If both processes wrote to it, the broker would
read their frames mixed; and removing it from a copied `epoll` removes it from the parent's, too. So
in the child the copies of a broker's sockets point to /dev/null from the fork on, whatever touches
or garbage-collects them later; a publisher that is used in the child opens new connections.
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


class OwnerProcess:
    """The process that made an object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the object was made in the current process, and not in one that it was forked
        from."""
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
