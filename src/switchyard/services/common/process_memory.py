"""Measure the memory of this process and of the processes that work for it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def process_memory(other_pids: Iterable[int] = ()) -> int | None:
    """Return the bytes of memory in use: the resident memory of this process, and the private part
    of that of the processes `other_pids`; shared pages and those of files would count twice. None
    on systems without /proc."""
    own_pages = _pages(os.getpid())
    if own_pages is None:
        return None
    others = [each for each in map(_pages, other_pids) if each is not None]
    pages = own_pages[0] + sum(max(0, resident - shared) for resident, shared in others)
    return pages * resource.getpagesize()


def _pages(pid: int) -> tuple[int, int] | None:
    """Return the resident pages of a process, and those of them that are of files or shared; None
    for one that has ended."""
    try:
        _, resident, shared, *_ = (_PROC / f"{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return int(resident), int(shared)
