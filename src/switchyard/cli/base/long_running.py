"""Save memory in long-running processes, and serve their metrics."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.monitoring.metrics import Metrics

GC_THRESHOLD: Final = 50_000
"""New objects after which Python searches for cycles of garbage. Its default of 700 suits small
programs: a worker makes that many for a few jobs, all of which are freed without a search, and
would spend a fifth of its time searching."""

_M_ARENA_MAX: Final = -8
"""M_ARENA_MAX of mallopt(3)."""


def settle_memory() -> None:
    """Tune memory use. Call it when everything is imported, before threads start."""
    if not gc.get_freeze_count():  # otherwise the parent process has done it before the fork
        gc.collect()
    gc.freeze()  # what is there now is not looked at again
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    _share_one_heap()


def _share_one_heap() -> None:
    """Let all threads share one heap. glibc gives every thread a heap of its own, and keeps freed
    memory in each: 25 MB in a backfill of 300,000 jobs on SQLite, with its five threads. As only
    one of Python's threads runs at a time, one heap is enough. Other C libraries have no such
    setting."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


@asynccontextmanager
async def showing_metrics(
    metrics: Metrics | None, settings: Settings, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """Serve metrics at the address of the settings while the context is open; None serves nothing.

    Raises PortTaken.
    """
    if metrics is None:
        yield
        return
    # Imported only if it is needed.
    from switchyard.api.metrics_server import serve_metrics

    async with serve_metrics(metrics, settings.metrics_host, settings.metrics_port, is_ready):
        yield
