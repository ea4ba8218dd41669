"""Measure the memory of this process and of the processes that work for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def process_memory(others: Iterable[int] = ()) -> int | None:
    """Return the bytes of memory in use: the resident memory of this process, and of the `others`,
    by their PIDs, the part that is not shared or of files, which would count twice. None on systems
    without /proc."""
    own = _pages(os.getpid())
    if own is None:
        return None
    found = [each for each in map(_pages, others) if each is not None]
    pages = own[0] + sum(max(0, resident - shared) for resident, shared in found)
    return pages * resource.getpagesize()


def _pages(pid: int) -> tuple[int, int] | None:
    """Return the resident pages of a process, and those of them that are of files or shared; None
    for one that has ended."""
    try:
        _, resident, shared, *_ = (_PROC / f"{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return int(resident), int(shared)
