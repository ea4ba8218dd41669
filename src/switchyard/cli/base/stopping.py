"""Handle the signals of a process that works until it is told to stop."""

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
"""Signal to a worker: take no more jobs, and end when the running ones have ended."""
SIGNAL_DEBOUNCE = 0.5
"""Seconds in which a repeated signal counts as the first one: `timeout` signals its command and
then the command's group, so that each signal comes twice."""


class OrderlyLoop(asyncio.SelectorEventLoop):
    """Event loop that removes its signal handlers before it closes.

    asyncio first closes the socket to which signals are written. A signal that comes in between, as
    when all processes of a system end at once, would print an error on stderr.
    """

    def close(self) -> None:
        for number in (*STOP_SIGNALS, RETIRE_SIGNAL):
            self.remove_signal_handler(number)
        super().close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `asyncio.run` does, in an OrderlyLoop."""
    with asyncio.Runner(loop_factory=OrderlyLoop) as runner:
        return runner.run(work)


def run_enduring(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as `run` does, even if a task of it raises SystemExit.

    Normally, a task that raises SystemExit or KeyboardInterrupt ends its event loop, and with it
    all other tasks, even if the task is awaited. With `stop_on_signals`, no such exception comes
    from a signal, so here the loop goes on, and the task's awaiter gets the exception.
    """
    with asyncio.Runner(loop_factory=OrderlyLoop) as runner:
        loop = runner.get_loop()
        main = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(main)
            except (KeyboardInterrupt, SystemExit) as error:
                may_be_signal = signal.getsignal(signal.SIGINT) is signal.default_int_handler
                if main.done() or may_be_signal:
                    raise
                name = type(error).__name__
                structlog.get_logger("process").error("exit refused", error_type=name)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first SIGTERM or SIGINT, and end the process at once at the next one that
    comes more than SIGNAL_DEBOUNCE after it."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _handle_first_signal, loop, stop)


def retire_on_signal(retire: Callable[[], None]) -> None:
    """Call `retire` at the first RETIRE_SIGNAL; further ones do nothing."""
    asyncio.get_running_loop().add_signal_handler(RETIRE_SIGNAL, retire)


def stop_by_interrupt() -> None:
    """Make SIGTERM and a closed terminal end this process in order, as Ctrl-C does."""
    # A shell starts its background jobs with SIGINT ignored: then nothing would end us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _handle_first_signal(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    since = loop.time()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _handle_next_signal, loop, since)
    stop()


def _handle_next_signal(loop: asyncio.AbstractEventLoop, since: float) -> None:
    if loop.time() - since <= SIGNAL_DEBOUNCE:
        return
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()  # nobody would be left to do it
    os._exit(INTERRUPTED)
