"""Find the processes that hold locks on a file, as Linux lists them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from switchyard.services.common.instance_ids import is_stopped

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A process that holds a lock on a file."""

    pid: int
    name: str
    """Name of its program, at most 15 characters; empty where that can't be read."""
    is_stopped: bool
    """Whether a signal has stopped it, such as SIGSTOP."""


def find_writers(file: Path, *, first_byte: int | None = None) -> list[LockHolder]:
    """Return the processes that hold a write lock on a file; with `first_byte`, only locks that
    begin there. Empty on systems without /proc/locks; processes of other containers and hosts are
    not found. The file is not opened: to close it would end this process's own locks on it."""
    try:
        status = file.stat()
        lines = (_PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids = []
    for line in lines:
        # 7: POSIX  ADVISORY  WRITE 10622 00:27:119 120 120; one that waits has "->" behind "7:"
        fields = line.split()
        if len(fields) != 8 or fields[3] != "WRITE" or fields[5] != device:
            continue
        if first_byte is None or fields[6] == str(first_byte):
            pids.append(int(fields[4]))
    return [_describe(pid) for pid in dict.fromkeys(pids) if pid > 0]


def _describe(pid: int) -> LockHolder:
    name = ""
    with suppress(OSError):  # it may have ended
        name = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    return LockHolder(pid, name, is_stopped(pid))
