"""Ids for processes that hold something in the ledger (jobs, leases, operations), and checks
whether such a process still runs."""

from __future__ import annotations

import os
import socket
from enum import StrEnum
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Indexes of fields of /proc/PID/stat, counted after the name: fields 3 and 22 of proc(5)."""
_STOPPED = ("T", "t")


class ProcessState(StrEnum):
    """State of a process, as far as is known."""

    RUNS = "runs"
    STOPPED = "stopped"
    """Stopped by a signal, such as SIGSTOP: it goes on after SIGCONT."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """The process ran on another host or in another container, or the system has no /proc."""


def new_instance_id() -> str:
    """Return a new id for every call: host and PID, for people to read, and a random
    part."""
    return f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"


def process_mark() -> str | None:
    """Return an identification of this process among all that ever had its PID: the boot of its
    host, its PID namespace and the moment it was started. None on systems without /proc."""
    namespace, stat = _pid_namespace(), _stat(os.getpid())
    return None if namespace is None or stat is None else f"{namespace} {stat[_STARTED]}"


def state_of_process(pid: int, mark: str | None) -> ProcessState:
    """Return the state of the process with this PID and this mark (`process_mark`)."""
    namespace = _pid_namespace()
    known, _, started = (mark or "").rpartition(" ")
    if namespace is None or known != namespace:
        return ProcessState.UNKNOWN
    stat = _stat(pid)
    if stat is None or stat[_STARTED] != started or stat[_STATE] in ("Z", "X"):
        return ProcessState.GONE
    return ProcessState.STOPPED if stat[_STATE] in _STOPPED else ProcessState.RUNS


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process that has this PID now."""
    stat = _stat(pid)
    return stat is not None and stat[_STATE] in _STOPPED


@cache
def _pid_namespace() -> str | None:
    """Return an id of the space in which PIDs mean the same as here: the host's start and
    namespace."""
    try:
        booted = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{booted} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return None


def _stat(pid: int) -> list[str] | None:
    try:
        # The name may have blanks and parentheses.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
