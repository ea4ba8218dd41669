"""Signals of a process that works until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from switchyard.cli.base.errors import INTERRUPTED

T = TypeVar("T")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RETIRE_SIGNAL = signal.SIGUSR1
"""To a worker: take no more jobs, and end when those that run have ended."""
SIGNAL_DEBOUNCE = 0.5
"""Seconds in which a repeated signal is the first one again: `timeout` signals its command and then
the group that it is in, so that each of its signals comes twice."""


def run_enduring(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has foreign code in its tasks to its end, as `asyncio.run` does.

    A task that raises SystemExit or KeyboardInterrupt ends its event loop, and with it what all
    others are at, even where somebody awaits that task. Once signals come by `stop_on_signals`, no
    such exception is a signal: the loop goes on, and whoever awaits the task gets the exception.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        main = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(main)
            except (KeyboardInterrupt, SystemExit) as error:
                is_signal = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                if main.done() or is_signal:
                    raise
                name = type(error).__name__
                structlog.get_logger("process").error("exit refused", error_type=name)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, and end the process at once at the next one that
    comes more than SIGNAL_DEBOUNCE after it."""
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
    if loop.time() - since <= SIGNAL_DEBOUNCE:
        return
    import multiprocessing

    for handler in multiprocessing.active_children():
        handler.kill()  # nobody would be left to do it
    os._exit(INTERRUPTED)
