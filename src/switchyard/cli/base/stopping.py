"""Signals of a process that works until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from switchyard.cli.base.errors import INTERRUPTED

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RETIRE_SIGNAL = signal.SIGUSR1
"""To a worker: take no more jobs, and end when those that run have ended."""
ECHO = 0.5
"""Seconds in which a repeated signal is the first one again: `timeout` signals its command and then
the group that it is in, so that each of its signals comes twice."""


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, and end the process at once at the next one that
    comes more than ECHO after it."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _first, loop, stop)


def retire_on_signal(retire: Callable[[], None]) -> None:
    """Call `retire` at RETIRE_SIGNAL. It stays harmless afterwards."""
    asyncio.get_running_loop().add_signal_handler(RETIRE_SIGNAL, retire)


def stop_by_interrupt() -> None:
    """Make SIGTERM and a closed terminal end this process as Ctrl-C does: in good order."""
    # A shell starts its background jobs with SIGINT ignored: then nothing would end us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _first(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    since = loop.time()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _again, loop, since)
    stop()


def _again(loop: asyncio.AbstractEventLoop, since: float) -> None:
    if loop.time() - since <= ECHO:
        return
    import multiprocessing

    for handler in multiprocessing.active_children():
        handler.kill()  # nobody would be left to do it
    os._exit(INTERRUPTED)
