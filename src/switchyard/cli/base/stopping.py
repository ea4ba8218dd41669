"""Signals of a process that works until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from switchyard.cli.base.errors import INTERRUPTED

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, and end the process at once at the second."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _first, loop, stop)


def _first(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _end_now)
    stop()


def _end_now() -> None:
    import multiprocessing

    for handler in multiprocessing.active_children():
        handler.kill()  # nobody would be left to do it
    os._exit(INTERRUPTED)
