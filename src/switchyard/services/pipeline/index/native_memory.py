"""What the C library keeps of the memory that LanceDB's threads have let go.

glibc gives threads up to eight heaps for each processor, and what is free in each of them stays
with the process: a table of 100,000 chunks, once compacted, left a worker with 200 MB that nobody
used.
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
_M_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_LARGE = 1024**2
"""Bytes from which memory is given back as soon as it is free. By itself, glibc takes more and more
from the heaps, up to 32 MiB at once."""


def limit_malloc_arenas() -> None:
    """Let this process's threads share one heap for each processor, unless MALLOC_ARENA_MAX says
    how many."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have neither
    if option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        option(_M_ARENA_MAX, os.cpu_count() or 1)
        option(_M_MMAP_THRESHOLD, _LARGE)


def trim_heap() -> None:
    """Give free memory of the heaps back to the system. Takes milliseconds, beside other
    threads."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
