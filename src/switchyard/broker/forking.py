"""What a process has to itself: after a fork, its child has copies of it that are of no use there.

The child's copy of a socket is the same connection. If both wrote on it the broker would hear two
voices at once; and to take it out of a copied `epoll` takes it out of the parent's. So in the child
the copies of a broker's sockets lead nowhere from the fork on, whoever touches or collects them
later, and whoever is used there begins anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import Protocol
from weakref import WeakSet


class Connected(Protocol):
    """Something with a socket."""

    def fileno(self) -> int:
        """Return the socket's; negative where there is none."""
        ...


class Owner:
    """The process that has made something."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no child of it."""
        return self._pid == os.getpid()


def keep_from_children(connected: Connected) -> None:
    """Let the copies of its socket that children get by a fork lead nowhere."""
    _tracked_connections().add(connected)


@cache
def _tracked_connections() -> WeakSet[Connected]:
    connections: WeakSet[Connected] = WeakSet()
    os.register_at_fork(after_in_child=lambda: _lead_nowhere(connections))
    return connections


def _lead_nowhere(connections: WeakSet[Connected]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connected in list(connections):
        # A number stays taken: closed, it would soon be that of something else.
        with suppress(OSError, ValueError, AttributeError):
            if (number := connected.fileno()) >= 0:
                os.dup2(nowhere, number, inheritable=False)
    connections.clear()
    os.close(nowhere)
