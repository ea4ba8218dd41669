"""Threads of a worker's event loop, of which calls that outlive their attempt take none from
others.

A thread can't be ended. What a handler calls in one (`asyncio.to_thread`) runs on when the handler
is cancelled at its time limit, and asyncio has few threads for everything: after a handful of such
calls nothing in the process gets a thread any more, not even to look up the broker's name.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any

MAX_CALLS = min(32, (os.cpu_count() or 1) + 4)
"""Calls at once, as many as asyncio allows by default."""


class AttemptCalls:
    """The calls that the handler of one attempt, and what it has started, has in threads."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called in a thread, whenever a call has ended, until `ignore_ends`."""
        self._on_end: Callable[[], None] | None = on_end
        self.threads: HandlerThreads | None = None
        """Where its calls run, as soon as there is one."""

    @property
    def running(self) -> int:
        """How many calls have a thread now."""
        return 0 if self.threads is None else self.threads.count(self)

    def report_end(self) -> None:
        """Report that a call has ended."""
        if (on_end := self._on_end) is not None:
            on_end()

    def ignore_ends(self) -> None:
        """Report no more ends. The two that know each other are freed without the collector."""
        self._on_end = None

    def give_up(self) -> int:
        """Return how many calls run on without the attempt, whose threads others get instead."""
        return 0 if self.threads is None else self.threads.give_up(self)


ATTEMPT_CALLS: ContextVar[AttemptCalls | None] = ContextVar("attempt_calls", default=None)
"""In the task of a handler, and in those that it starts, the calls of its attempt."""


class HandlerThreads(ThreadPoolExecutor):
    """Default executor of a worker's event loop: MAX_CALLS calls at once, and one more for each
    that was given up. None of its threads keeps the process from ending."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)  # asyncio asks for this class; its own threads are not used
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._idle_threads = 0
        self._taken: SimpleQueue[_Call | None] = SimpleQueue()
        """Calls that a thread is about to run; None ends one thread."""
        self._is_closed = False

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the work in a thread as soon as one is free."""
        call = _Call(lambda: work(*args, **kwargs), ATTEMPT_CALLS.get())
        if call.attempt is not None:
            call.attempt.threads = self
        with self._lock:
            if self._is_closed:
                raise RuntimeError("no more calls are taken: the event loop closes")
            self._waiting.append(call)
            self._start_threads()
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and wait for those that run, except for given-up ones."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._idle_threads):
                self._taken.put(None)
            self._idle_threads = 0
            if cancel_futures:
                for call in self._waiting:
                    call.future.cancel()
            left = [
                each.future for each in (*self._running, *self._waiting) if not each.is_given_up
            ]
        if wait:
            concurrent.futures.wait(left)

    def count(self, attempt: AttemptCalls) -> int:
        """Return how many calls of the attempt run."""
        with self._lock:
            return sum(each.attempt is attempt for each in self._running)

    def give_up(self, attempt: AttemptCalls) -> int:
        """Count the running calls of the attempt no more; return how many there are."""
        with self._lock:
            given_up = [each for each in self._running if each.attempt is attempt]
            for call in given_up:
                call.is_given_up = True
            self._start_threads()
        return len(given_up)

    def _start_threads(self) -> None:
        while (call := self._take()) is not None:
            self._taken.put(call)
            if self._idle_threads:
                self._idle_threads -= 1
            else:
                threading.Thread(target=self._run_calls, name="handler", daemon=True).start()

    def _take(self) -> _Call | None:
        counted = sum(not each.is_given_up for each in self._running)
        if not self._waiting or counted >= MAX_CALLS:
            return None
        call = self._waiting.popleft()
        self._running.add(call)
        return call

    def _run_calls(self) -> None:
        while (call := self._taken.get()) is not None:
            call.run()
            with self._lock:
                self._running.discard(call)
                self._idle_threads += 1
                self._start_threads()
                # Idle threads were ended at `shutdown`, so one that is idle after it is this one.
                is_last = self._is_closed and self._idle_threads > 0
                if is_last:
                    self._idle_threads -= 1
            if call.attempt is not None:
                call.attempt.report_end()
            if is_last:
                return
            del call  # with what it returned, until the next one comes


class _Call:
    """A call that waits for a thread, or has one."""

    def __init__(self, work: Callable[[], Any], attempt: AttemptCalls | None) -> None:
        self.future: Future[Any] = Future()
        self.attempt = attempt
        self.is_given_up = False
        self._work = work

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
