"""The process in which a CPU-bound handler runs: it has few rights, and never outlives its parent.

Handlers there read foreign files, so they may crash, hang, or corrupt a library's state. By its
exit code, the process tells its parent that it can't be used any more.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from switchyard.services.engine.jobs.context import JobContext, Usage, in_thread
from switchyard.services.engine.jobs.registry import Handler
from switchyard.services.engine.jobs.retry import Failure, RemoteError
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.runtime.process_pool import LENGTH_PREFIX, READY, end_with_parent
from switchyard.services.engine.runtime.shared_memory import SharedProgressAddress, writing_to

LEDGER_AWAY_PAUSE = 5.0
"""Seconds until a job runs again whose handler could not reach the ledger."""
OUT_OF_MEMORY = 81
"""Exit code of a process whose job reached the memory limit."""
WORN_OUT = 82
"""Exit code of a process in which earlier jobs have used up the memory: this job has not ended, and
may run in another process."""

MAX_FILE_BYTES = 1024**3
"""Largest file that such a process may write."""
MAX_OPEN_FILES = 256

_USED_NAME = "used"
"""Name of a process that has run a job."""
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38  # of prctl(2)


@dataclass(frozen=True, slots=True)
class ChildResult:
    """A handler's outcome, and the usage that it reported."""

    outcome: Any
    usage: Usage


def serve(connection: socket.socket) -> None:
    """Answer calls, one after another, until the parent closes the connection: the main loop of a
    child process."""
    restrict_process()
    multiprocessing.current_process().daemon = False  # a job may have processes of its own
    with connection, connection.makefile("rb") as calls, suppress(ConnectionError):
        connection.sendall(READY)
        while header := calls.read(LENGTH_PREFIX.size):
            (length,) = LENGTH_PREFIX.unpack(header)
            answer = run_pickled(calls.read(length))
            # Fails if the parent has abandoned the call; it kills this process at once.
            connection.sendall(LENGTH_PREFIX.pack(len(answer)))
            connection.sendall(answer)


def restrict_process() -> None:
    """Limit what this process may do, and make it end with its parent."""
    # Ctrl-C reaches the whole process group; only the parent may end its children.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Otherwise, a crash of a library would leave no trace.
    faulthandler.enable(sys.__stderr__ or 2, all_threads=False)
    if sys.platform == "linux":
        control = ctypes.CDLL(None).prctl
        # Die with the fork server, too, as only that can read this process's exit code.
        control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        control(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    end_with_parent()
    for limit_id, maximum in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
    ):
        _, hard_limit = resource.getrlimit(limit_id)
        new_limit = maximum if hard_limit == resource.RLIM_INFINITY else min(maximum, hard_limit)
        resource.setrlimit(limit_id, (new_limit, new_limit))


def run_job(
    handler: Handler,
    payload: BaseModel,
    ctx: Mapping[str, Any],
    progress_address: SharedProgressAddress,
    memory_limit_mb: int | None,
    cpu_limit: int | None,
) -> Any:
    """Return the handler's outcome or a Failure, in a ChildResult where usage was reported.
    Progress is written to `progress_address`."""
    # Failures are classified here: not every exception can be pickled.
    usage = Usage()
    try:
        with _processor_time(cpu_limit), writing_to(progress_address) as progress_buffer:
            job_context = JobContext(**ctx, progress_buffer=progress_buffer, usage=usage)
            outcome = run_with_memory_limit(handler, (payload, job_context), memory_limit_mb)
    except BaseException as error:
        outcome = failure_of(error)
    return ChildResult(outcome, usage) if usage.tokens is not None else outcome


def run_async_job(
    handler: Handler,
    payload: BaseModel,
    ctx: Mapping[str, Any],
    progress_address: SharedProgressAddress,
) -> Any:
    """As `run_job`, for a handler that otherwise runs in a worker's event loop."""
    usage = Usage()
    try:
        with writing_to(progress_address) as progress_buffer:
            context_fields = {**ctx, "progress_buffer": progress_buffer, "usage": usage}
            outcome = run_with_memory_limit(
                lambda: asyncio.run(_run_with_ledger(handler, payload, context_fields)), (), None
            )
    except BaseException as error:
        outcome = failure_of(error)
    return ChildResult(outcome, usage) if usage.tokens is not None else outcome


def failure_of(error: BaseException) -> Failure:
    """Return the Failure for an exception that a handler raised, of whatever class. Never
    raises."""
    failure = Failure.from_error(error)
    if issubclass(type(error), LedgerUnavailable):
        # Not the job's fault: no attempt is used. The job still ages, so this ends at its expiry.
        return replace(failure, after=LEDGER_AWAY_PAUSE, counts=False)
    return failure


def pickle_call(work: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Return the call in the form that `run_pickled` takes. Raises what pickling raises."""
    return pickle.dumps((work, args))


def run_pickled(call: bytes) -> bytes:
    """Run a pickled call; return its pickled outcome, for `unpickle_outcome`.

    Only bytes pass between the processes. An object that can't be pickled, or can't be unpickled on
    the other side, would break the pool, and with it other jobs.
    """
    try:
        work, args = pickle.loads(call)
        return pickle.dumps((True, work(*args)))
    except BaseException as error:
        return pickle.dumps((False, (_pickle_error(error), Failure.from_error(error))))


def unpickle_outcome(answer: bytes) -> Any:
    """Return what the work in another process returned, or raise its error; RemoteError for an
    error that can't be unpickled here. Raises whatever unpickling the answer itself raises."""
    has_returned, value = pickle.loads(answer)
    if has_returned:
        return value
    raise _unpickle_error(*value)


def _pickle_error(error: BaseException) -> bytes:
    """Return the pickled error; empty where it can't be pickled."""
    try:
        return pickle.dumps(error)
    except BaseException:
        return b""


def _unpickle_error(pickled: bytes, failure: Failure) -> BaseException:
    error: object = None
    try:
        error = pickle.loads(pickled) if pickled else None
    except BaseException:  # unpickling runs foreign code: fall back to RemoteError
        error = None
    if not isinstance(error, BaseException):
        error = RemoteError(failure.error_type, failure.message)
    error.add_note(f"In its process:\n{failure.traceback}")
    return error


async def _run_with_ledger(handler: Handler, payload: BaseModel, ctx: Mapping[str, Any]) -> Any:
    # Imported here: a process with a memory limit must not load a database library at its start.
    from switchyard.services.engine.ledger import Ledger

    async with await Ledger.open(ctx["settings"].ledger_url) as ledger:
        return await handler(payload, JobContext(**ctx, ledger=ledger, in_process=_SameProcess()))


class _SameProcess:
    """`JobContext.in_process` for a job that already has a process of its own: applies the same
    limits, to one call at a time. A call that takes too long raises TimeoutError; its thread ends
    with the job's process."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __call__(
        self, work: Callable[..., Any], *args: Any, timeout: float, memory_limit_mb: int
    ) -> Any:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        async with self._lock:
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit_mb * 1024 * 1024, hard_limit))
            try:
                async with asyncio.timeout(timeout):
                    return await in_thread(work, *args)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


def run_with_memory_limit(
    work: Callable[..., Any], args: tuple[Any, ...], memory_limit_mb: int | None
) -> Any:
    """Run the work in at most `memory_limit_mb` MiB of address space; return or raise as it
    does."""
    process = multiprocessing.current_process()
    was_used, process.name = process.name == _USED_NAME, _USED_NAME
    if memory_limit_mb is None:
        return work(*args)
    limit = memory_limit_mb * 1024 * 1024
    if was_used and _address_space() > limit / 2:
        os._exit(WORN_OUT)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    try:
        return work(*args)
    except BaseException as error:
        if any(issubclass(type(each), MemoryError) for each in _cause_chain(error)):
            # The libraries' state is unknown now, so nothing else may run here. If the process was
            # used before, earlier jobs may have used up the memory.
            os._exit(WORN_OUT if was_used else OUT_OF_MEMORY)
        raise
    finally:
        # No limit between jobs: the next job's arguments have to be read.
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


@contextmanager
def _processor_time(seconds: int | None) -> Iterator[None]:
    """Limit the processor time from now on. The kernel ends the process, even inside of a
    library."""
    if seconds is None:
        yield
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    maximum = ceil(used.ru_utime + used.ru_stime) + seconds
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU,
        (maximum if hard_limit == resource.RLIM_INFINITY else min(maximum, hard_limit), hard_limit),
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (hard_limit, hard_limit))


def _address_space() -> int:
    """Return the bytes of address space in use; 0 where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes and contexts."""
    seen_ids: set[int] = set()
    while error is not None and id(error) not in seen_ids:
        seen_ids.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
