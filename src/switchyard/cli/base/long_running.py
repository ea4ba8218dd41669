"""What a process that runs for long does about its memory, and how it shows its metrics."""

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

ALLOCATIONS: Final = 50_000
"""Objects that are made before Python looks for cycles of dead ones. Its own 700 suits small
programs: a worker makes as many for a few jobs, all of which go by themselves, and spends a fifth
of its time in looking."""

_M_ARENA_MAX: Final = -8
"""Of mallopt(3)."""


def settle_memory() -> None:
    """Call once everything is imported, and before threads start."""
    if not gc.get_freeze_count():  # else it was forked from a process that has seen to it
        gc.collect()
    gc.freeze()  # what is there now is not looked at again
    gc.set_threshold(ALLOCATIONS, 20, 50)
    _share_one_heap()


def _share_one_heap() -> None:
    """The C library of GNU gives every thread a heap of its own, and keeps what was freed in each:
    25 MB in a backfill of 300,000 jobs on SQLite, with its five threads. Of Python's threads one
    runs at a time, so one heap will do. Other C libraries have no such setting."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, 1)


@asynccontextmanager
async def showing_metrics(
    metrics: Metrics | None, settings: Settings, is_ready: Callable[[], bool]
) -> AsyncIterator[None]:
    """Show these metrics where the settings say, for as long as the context lasts; None: nowhere.

    Raises PortTaken.
    """
    if metrics is None:
        yield
        return
    # The server of it is loaded only where it is wanted.
    from switchyard.api.metrics_server import showing

    async with showing(metrics, settings.metrics_host, settings.metrics_port, is_ready):
        yield
