"""Give memory that LanceDB's threads have freed back to the system.

glibc gives threads up to eight heaps for each processor, and what is free in each of them stays
with the process: a table of 100,000 chunks, once compacted, left a worker with 200 MB that nobody
used.
"""

from __future__ import annotations

import ctypes
import os

_M_ARENA_MAX = -8  # M_ARENA_MAX of mallopt(3)
_M_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_MMAP_THRESHOLD_BYTES = 1024**2
"""Allocations from this size on are mapped, and returned as soon as they are freed. Otherwise glibc
raises the limit by itself, up to 32 MiB, and takes larger and larger ones from the heaps."""


def configure_malloc() -> None:
    """Let this process's threads share one heap for each processor, and give large blocks back at
    once. Changes nothing where MALLOC_ARENA_MAX is set."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has it
    if option is not None and "MALLOC_ARENA_MAX" not in os.environ:
        option(_M_ARENA_MAX, os.cpu_count() or 1)
        option(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def trim_heap() -> None:
    """Give free memory of the heaps back to the system. Takes milliseconds; other threads may go on
    meanwhile."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
