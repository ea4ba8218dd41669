"""One command in several processes: forked from one that has loaded everything, and kept up.

The first process does none of the work. It starts again, after a pause, what has died; a process
that fails before it was ever ready ends them all, because the next one would fail the same way.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from switchyard.cli.base.errors import INTERRUPTED, WrongUsage
from switchyard.cli.base.long_running import settle_memory
from switchyard.cli.base.stopping import SIGNAL_DEBOUNCE, STOP_SIGNALS
from switchyard.cli.system.supervisor import MAX_BACKOFF, RestartBackoff

MAX_WAIT: Final = 60.0
"""Seconds after which the processes are checked at the latest; each that ends sends a signal
before."""
_PR_SET_PDEATHSIG: Final = 1  # of prctl(2)


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """What a forked process knows of itself."""

    number: int
    """From 1; the process that replaces it after its death has the same."""
    _ready: int

    def tell_ready(self) -> None:
        """Tell the first process that this one works: from now on it is started again when it
        ends."""
        with suppress(OSError):  # the first process has ended
            os.write(self._ready, b".")


@dataclass(slots=True)
class _ProcessSlot:
    """One of the `count` processes, which is forked again after a death."""

    number: int
    pid: int = 0
    """0: no process runs in it."""
    ready: int = -1
    started_at: float = 0.0
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    restart_at: float = 0.0


def fork_children(count: int, release: Callable[[], None]) -> ForkedChild:
    """Fork `count` processes, and return in each of them. Call it before there is a thread, an
    event loop or a connection.

    In the first process it does not return: at SIGTERM or SIGINT it calls `release` to close what
    only the forked processes need, ends them all, and raises SystemExit with their exit code.
    Raises WrongUsage where the system can't do it.
    """
    if not hasattr(signal, "sigtimedwait"):
        raise WrongUsage("several processes need Linux: start one, or several beside each other")
    settle_memory()  # a search for garbage writes into objects, which would copy shared pages
    return _Parent(count, release).run()


class _Parent:
    def __init__(self, count: int, release: Callable[[], None]) -> None:
        self._slots = [_ProcessSlot(number) for number in range(1, count + 1)]
        self._release = release
        self._log = structlog.get_logger("processes")
        self._awaited = {*STOP_SIGNALS, signal.SIGCHLD}
        self._code = 0
        self._stopped_at: float | None = None

    def run(self) -> ForkedChild:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        while True:
            for slot in self._slots:
                if self._is_due(slot) and (child := self._fork(slot)) is not None:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                    return child
            received = signal.sigtimedwait(self._awaited, self._seconds_to_next_start())
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._stop_or_kill()
            self._collect_ended()
            if self._stopped_at is not None and not any(each.pid for each in self._slots):
                raise SystemExit(self._code)

    def _is_due(self, slot: _ProcessSlot) -> bool:
        return not slot.pid and self._stopped_at is None and slot.restart_at <= time.monotonic()

    def _seconds_to_next_start(self) -> float:
        """Return how long to wait for a signal, at most MAX_WAIT."""
        if self._stopped_at is not None:
            return MAX_WAIT
        starts = [each.restart_at for each in self._slots if not each.pid]
        return max(0.0, min([MAX_WAIT, *(start - time.monotonic() for start in starts)]))

    def _fork(self, slot: _ProcessSlot) -> ForkedChild | None:
        """Fork a process for a slot. Return None in the first process, and in the child what it
        knows of itself."""
        ready, tell_ready = os.pipe()
        os.set_blocking(ready, False)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(ready)
            os.close(tell_ready)
            slot.restart_at = time.monotonic() + MAX_BACKOFF
            self._log.error("process not started", number=slot.number, error=str(error))
            return None
        if pid == 0:
            _end_with_parent(parent)
            for fd in (ready, *(each.ready for each in self._slots if each.pid)):
                os.close(fd)
            return ForkedChild(slot.number, tell_ready)
        os.close(tell_ready)
        slot.pid, slot.ready, slot.started_at = pid, ready, time.monotonic()
        return None

    def _collect_ended(self) -> None:
        for slot in self._slots:
            if not slot.pid:
                continue
            pid, status = os.waitpid(slot.pid, os.WNOHANG)
            if pid:
                self._note_end(slot, os.waitstatus_to_exitcode(status))

    def _note_end(self, slot: _ProcessSlot, code: int) -> None:
        was_ready = _has_reported(slot.ready)
        os.close(slot.ready)
        slot.pid = 0
        if self._stopped_at is not None:
            return
        if code > 0 and not was_ready:
            self._code = code
            self._stop_or_kill()
            return
        now = time.monotonic()
        pause = slot.backoff.after_death(now - slot.started_at)
        slot.restart_at = now + pause
        self._log.error("process ended", number=slot.number, exit_code=code, restart_in=pause)

    def _stop_or_kill(self) -> None:
        """Tell all processes to stop; at the second call, kill them."""
        now = time.monotonic()
        number = signal.SIGTERM
        if self._stopped_at is None:
            self._stopped_at = now
            self._release()
        elif now - self._stopped_at > SIGNAL_DEBOUNCE:
            self._code, number = INTERRUPTED, signal.SIGKILL
        for slot in self._slots:
            if slot.pid:
                os.kill(slot.pid, number)


def _has_reported(ready: int) -> bool:
    try:
        return bool(os.read(ready, 1))
    except BlockingIOError:
        return False


def _end_with_parent(parent: int) -> None:
    """Have this process stop in good order when the first one is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(INTERRUPTED)
