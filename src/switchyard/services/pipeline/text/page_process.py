"""Read and draw the pages of one PDF in a process of their own, one after the other.

A page of a few bytes can keep a library busy for years (fonts, forms or patterns that draw each
other), and no library can be interrupted everywhere. So the process with the open document forks:
the kernel ends the fork at the page's limit, and another fork reads the next page.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any, NoReturn, Self

from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    PageTooCostly,
)
from switchyard.services.pipeline.text.pdf_pages import Limits

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl(2)


class PageProcess:
    """Runs a function for one page after the other, in a process forked from this one.

    The forked process starts with the first page, and again after each page that ended it. This
    process does not see what the function changes. Use it as a context manager, from one thread at
    a time.
    """

    def __init__(self, handle_page: Callable[..., Any], limits: Limits) -> None:
        """`handle_page` is a function of a page's number, from 1, and further arguments. Arguments
        and result must be picklable."""
        self._handle_page = handle_page
        self._limits = limits
        self._child: tuple[int, Connection] | None = None
        self._lost_pages = 0
        self._used_seconds = 0.0
        """Seconds of processor time that the pages took."""

    def run(self, number: int, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the function for page `number`.

        Raises what the function raises; PageTooCostly for a page that takes more processor time
        than `Limits.page_seconds`, CorruptDocument for one at which the library crashes, and
        DocumentTooLarge where more than `Limits.lost_pages` pages failed in these ways.
        """
        if self._lost_pages > self._limits.lost_pages:
            raise self._too_many_lost(number)
        seconds = self._seconds_for_a_page()
        pid, connection = self._child or self._fork()
        try:
            connection.send((seconds, number, args, kwargs))
            reply = connection.recv_bytes()
        except (EOFError, ConnectionError):
            self._forget_child()
            return self._raise_for_lost_page(number, seconds, os.waitpid(pid, 0)[1])
        has_returned, result, used_seconds = pickle.loads(reply)
        self._used_seconds += used_seconds
        if has_returned:
            return result
        raise result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None:
            pid, _ = self._child
            self._forget_child()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _fork(self) -> tuple[int, Connection]:
        own_end, child_end = Pipe()
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            own_end.close()
            _serve(child_end, self._handle_page, parent_pid)
        child_end.close()
        self._child = pid, own_end
        return self._child

    def _forget_child(self) -> None:
        if self._child is not None:
            self._child[1].close()
            self._child = None

    def _seconds_for_a_page(self) -> int:
        """Return the limit of the next page in seconds of processor time: at most what is left of
        this process's time for all pages."""
        soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
        if soft == resource.RLIM_INFINITY:
            return self._limits.page_seconds
        usage = resource.getrusage(resource.RUSAGE_SELF)
        remaining = soft - usage.ru_utime - usage.ru_stime - self._used_seconds
        if remaining <= 0:
            _end_as(signal.SIGXCPU)
        return min(self._limits.page_seconds, max(1, int(remaining)))

    def _raise_for_lost_page(self, number: int, seconds: int, status: int) -> NoReturn:
        """Raise the error for a page at which the process has died."""
        ended_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
        if ended_by == signal.SIGXCPU:
            self._used_seconds += seconds
            if seconds < self._limits.page_seconds:  # the time of all pages has run out
                _end_as(signal.SIGXCPU)
        elif ended_by is None:
            raise RuntimeError(f"the process that reads the PDF's page {number} has exited")
        elif ended_by not in _CRASHES:  # killed from outside, for memory: end the attempt likewise
            _end_as(ended_by)
        self._lost_pages += 1
        if self._lost_pages > self._limits.lost_pages:
            raise self._too_many_lost(number)
        if ended_by == signal.SIGXCPU:
            raise PageTooCostly(
                f"page {number} of the PDF takes more than {seconds} s of processor time"
            )
        raise CorruptDocument(
            f"the PDF is corrupt: page {number} crashes the library that reads it ({ended_by.name})"
        )

    def _too_many_lost(self, number: int) -> DocumentTooLarge:
        return DocumentTooLarge(
            f"up to page {number}, more than {self._limits.lost_pages} pages of the PDF take more "
            f"than {self._limits.page_seconds} s of processor time each, or crash the library"
        )


def _end_as(ended_by: signal.Signals) -> NoReturn:
    """End this process by the signal that has ended its child, so that its parent sees it."""
    os.kill(os.getpid(), ended_by)
    raise SystemExit(128 + ended_by)


def _serve(connection: Connection, handle_page: Callable[..., Any], parent_pid: int) -> NoReturn:
    """Answer calls until the parent is gone. Never returns into the parent's code."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        gc.freeze()  # or the first collection would copy the parent's memory
        while os.getppid() == parent_pid:
            seconds, number, args, kwargs = connection.recv()
            connection.send_bytes(_handle_call(handle_page, seconds, number, args, kwargs))
    except (EOFError, ConnectionError):
        pass  # the parent needs no more pages
    except BaseException:
        with suppress(OSError):
            traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)


def _handle_call(
    handle_page: Callable[..., Any], seconds: int, number: int, args: Any, kwargs: Any
) -> bytes:
    seconds_before = _processor_seconds()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = ceil(seconds_before) + seconds
    resource.setrlimit(
        resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )
    try:
        result: Any = handle_page(number, *args, **kwargs)
        return pickle.dumps(
            (True, result, _processor_seconds() - seconds_before), pickle.HIGHEST_PROTOCOL
        )
    except Exception as error:
        error.add_note(f"In the process of its page:\n{traceback.format_exc()}")
        return pickle.dumps((False, _portable(error), _processor_seconds() - seconds_before))


def _portable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its text where it can't be unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a library's own, of any class
        return RuntimeError(f"{type(error).__name__}: {error}"[:1_000])
    return error


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
