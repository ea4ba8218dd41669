"""Run a pool of processes for work that may crash, hang or corrupt a library's state. Each process
does one call at a time, and is killed if a call is late or abandoned.

Each process has a socket of its own, and shares nothing else with the others. With shared queues
and locks, as in the pools of `concurrent.futures`, pebble or loky, the death of one process may be
taken for that of another, or be missed: the parent then waits for an answer that never comes.
"""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from switchyard.services.engine.jobs.context import in_thread

T = TypeVar("T")

CALLS_PER_PROCESS = 100
"""Calls after which a process is replaced, so that the leaks of a C library stay bounded."""
EXIT_TIMEOUT = 5.0
"""Seconds for a process to end by itself; then it is killed."""
LENGTH_PREFIX = struct.Struct("!Q")
"""Header of each call and each answer: the number of bytes that follow."""
PIECE_BYTES = 1024 * 1024
"""Bytes of a call that are written at once: asyncio copies, in the event loop, what the socket does
not take."""
READY = b"r"
"""Byte that a process sends once it waits for calls."""

_FINAL_READ_TIMEOUT = 1.0
"""Seconds to read what a process wrote before its death: the socket may stay open in a child of its
own."""
_OWN_PREFIX = f"{__name__.partition('.')[0]}."
PRELOADED_MODULES = (
    "switchyard.services.engine.runtime.child",
    "switchyard.services.common.settings",
)
"""Modules that are loaded before the fork. Never a user's module: loading it may start threads,
open connections or read a secret, which must not be in every process. No large library: each
process has a memory limit, and loads only what its job needs."""

_CHILDREN_LOCK = threading.Lock()
"""Held while children are started or their exit codes are read. `multiprocessing` polls all
children of the program whenever it starts one, and two threads that poll the same child read its
one exit code twice: the second takes the child for lost."""


class ProcessEnded(Exception):
    """The process died during a call, because of the call or by a kill from outside."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"ended with exit code {exit_code}")
        self.exit_code = exit_code
        """Negative: the number of the signal that killed it."""


class ProcessPool:
    """Keeps at most `processes` processes, each started when it is needed and kept for later calls.

    `serve` is what a process runs: it answers the calls that come through its socket, one after
    another, until that is closed. Calls that find no process free wait in the order they came.
    """

    def __init__(self, processes: int, serve: Callable[[socket.socket], None]) -> None:
        self._processes = processes
        self._serve = serve
        self._free_slots = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._running: set[_Process] = set()
        self._in_background: set[asyncio.Future[Any]] = set()
        """Starts without a waiting caller, and the ends of processes."""

    async def call(
        self,
        request: bytes,
        *,
        timeout: float | None = None,
        preload: Callable[..., Any],
        fresh: bool = False,
    ) -> bytes:
        """Send a request to a process and return its answer; to a process that has had no call
        before if `fresh`. The process is killed when this call is cancelled.

        `timeout`: seconds from when a process has the request. The module of `preload`, if it is
        one of ours, is in memory before the first process is started.

        Raises:
            TimeoutError: it took longer; the process is killed.
            ProcessEnded: the process died before it had answered.
            OSError: no process can be started.
        """
        async with self._free_slots:
            process = (None if fresh else self._take_idle()) or await self._start(preload)
            self._running.add(process)
            try:
                async with asyncio.timeout(timeout):
                    answer = await process.ask(request)
            except (EOFError, ConnectionError) as error:
                exit_code = await asyncio.shield(self._end(process, kill=False))
                raise ProcessEnded(exit_code) from error
            except BaseException:
                self._end(process, kill=True)
                raise
            finally:
                self._running.discard(process)
            self._release(process)
            return answer

    @property
    def pids(self) -> list[int]:
        """The PIDs of the live processes, busy or idle."""
        living = (each for each in (*self._running, *self._idle) if each.is_running)
        return [each.pid for each in living if each.pid is not None]

    async def close(self) -> None:
        """End the processes, killing what still runs: its caller gets ProcessEnded."""
        await asyncio.gather(*(in_thread(process.kill) for process in self._running))
        while self._idle or self._in_background:
            while self._idle:
                self._end(self._idle.pop(), kill=True)
            await asyncio.wait(self._in_background)

    def _take_idle(self) -> _Process | None:
        """Take an idle process that still lives; None where there is none. One that was killed
        meanwhile is dropped."""
        while self._idle:
            process = self._idle.pop()
            if process.is_running:
                return process
            self._end(process, kill=True)
        return None

    async def _start(self, preload: Callable[..., Any]) -> _Process:
        starting = asyncio.ensure_future(self._start_ready(preload))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A start takes seconds on a busy host, and can't be stopped: a later call may use the
            # process.
            self._keep_until_done(starting)
            starting.add_done_callback(self._release_started)
            raise

    async def _start_ready(self, preload: Callable[..., Any]) -> _Process:
        """Start a process and wait until it is ready for calls. If it dies before, as when the fork
        server is killed, start another one, once."""
        try:
            return await self._start_once(preload)
        except (EOFError, ConnectionError):
            try:
                return await self._start_once(preload)
            except EOFError as error:
                raise ConnectionResetError("a process died while it started") from error

    async def _start_once(self, preload: Callable[..., Any]) -> _Process:
        process = await _Process.start(self._serve, preload)
        try:
            await process.wait_until_ready()
        except BaseException:
            self._end(process, kill=True)
            raise
        return process

    def _release_started(self, starting: asyncio.Future[_Process]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._release(starting.result())

    def _release(self, process: _Process) -> None:
        is_spare = len(self._idle) + len(self._running) >= self._processes
        if is_spare or process.calls >= CALLS_PER_PROCESS:
            self._end(process, kill=False)
        else:
            self._idle.append(process)

    def _end(self, process: _Process, *, kill: bool) -> asyncio.Future[int]:
        """End a process; the future has its exit code once it has ended."""
        process.disconnect()
        return self._keep_until_done(asyncio.ensure_future(in_thread(process.end, kill)))

    def _keep_until_done(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        self._in_background.add(future)
        future.add_done_callback(self._in_background.discard)
        return future


class _Process:
    """One process, with our end of its socket."""

    def __init__(
        self, process: BaseProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.is_running = True
        self._has_ended = False
        self.calls = 0
        # The end of the socket alone is not enough: a child of the process may hold it open.
        asyncio.get_running_loop().add_reader(process.sentinel, self._has_died)

    @classmethod
    async def start(
        cls, serve: Callable[[socket.socket], None], preload: Callable[..., Any]
    ) -> _Process:
        """Start a process. Raises OSError, EOFError."""
        our_end, child_end = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=our_end)
        try:
            with child_end:
                return cls(await in_thread(_start, serve, child_end, preload), reader, writer)
        except BaseException:
            writer.close()
            raise

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def wait_until_ready(self) -> None:
        """Wait until it is ready. Raises EOFError or ConnectionError if it has died."""
        await self._reader.readexactly(len(READY))

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return its answer. Raises EOFError or ConnectionError if it has
        died."""
        self.calls += 1
        self._writer.write(LENGTH_PREFIX.pack(len(request)))
        pieces = memoryview(request)
        for start in range(0, len(request), PIECE_BYTES):
            self._writer.write(pieces[start : start + PIECE_BYTES])
            await self._writer.drain()
        (length,) = LENGTH_PREFIX.unpack(await self._reader.readexactly(LENGTH_PREFIX.size))
        return await self._reader.readexactly(length)

    def disconnect(self) -> None:
        """Close the socket: an idle process then ends by itself."""
        self._stop_watching()
        self._writer.close()

    def kill(self) -> None:
        """Kill the process if it lives. Blocks while another process starts."""
        with _CHILDREN_LOCK:
            if not self._has_ended and self._process.is_alive():
                self._process.kill()

    def end(self, kill: bool) -> int:
        """Wait for its end, or kill it; return its exit code. Blocks."""
        if kill or not wait([self._process.sentinel], EXIT_TIMEOUT):
            self.kill()
        wait([self._process.sentinel])
        with _CHILDREN_LOCK:
            self._process.join()
            exit_code = self._process.exitcode
            self._process.close()
            self._has_ended = True
        assert exit_code is not None
        return exit_code

    def _has_died(self) -> None:
        self._stop_watching()
        asyncio.get_running_loop().call_later(_FINAL_READ_TIMEOUT, self._writer.transport.abort)

    def _stop_watching(self) -> None:
        if self.is_running:
            self.is_running = False
            asyncio.get_running_loop().remove_reader(self._process.sentinel)


def _start(
    serve: Callable[[socket.socket], None], connection: socket.socket, preload: Callable[..., Any]
) -> BaseProcess:
    with _CHILDREN_LOCK:
        context = process_context(preload)
        # A daemon, so that it ends with this program, however that ends.
        process = context.Process(target=serve, args=(connection,), daemon=True)
        process.start()
    return process


def process_context(preload: Callable[..., Any]) -> ForkServerContext | SpawnContext:
    """Return the context of `multiprocessing` that starts processes which share nothing with this
    one: no socket, lock or thread.

    They are forked from a fork server: a new program, which ends with the last of them. It has
    loaded what all of them need, and the module of `preload` if that is one of ours.
    """
    if sys.platform != "linux":
        # Elsewhere, the system's own libraries start threads.
        return multiprocessing.get_context("spawn")
    own_module = [preload.__module__] if preload.__module__.startswith(_OWN_PREFIX) else []
    # Used only when the fork server starts.
    forkserver.set_forkserver_preload([*PRELOADED_MODULES, *own_module])
    return multiprocessing.get_context("forkserver")


def end_with_parent() -> None:
    """Make the kernel, where it can, kill this process as soon as its parent is dead, even while a
    library runs."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe = parent.sentinel  # only the parent has its other end, and sends nothing more
    if sys.platform == "linux":
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # the parent died before this was set up
        os._exit(0)
