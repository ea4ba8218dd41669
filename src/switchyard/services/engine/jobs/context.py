"""Define the context that a handler gets in addition to its payload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from switchyard.broker.message import JobMessage
from switchyard.services.common.errors import RetryableError
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.jobs.progress_buffer import ProgressBuffer
from switchyard.services.engine.records.joins import JoinedJob

if TYPE_CHECKING:  # a module that only declares handlers needs neither
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.ledger import Ledger


T = TypeVar("T")

MAX_TOKENS = 10**12
"""Tokens of one attempt that are counted, at most: a bound for the ledger's numbers."""
JOINED_PAGE = 20
"""Joined jobs of one page: each may have a megabyte of payload."""


def _never() -> bool:
    return False


class ProcessResources:
    """Resources that the handlers of one process share, such as clients and connections: opened at
    the first use, closed with the process."""

    def __init__(self) -> None:
        self._exit_stack = AsyncExitStack()
        self._resources: dict[type[Any], Any] = {}
        self._lock = asyncio.Lock()

    async def get(self, kind: type[T], make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Return the one object of that kind; `make` makes it at the first call. Raises what
        `make` raises."""
        async with self._lock:
            if kind not in self._resources:
                self._resources[kind] = await self._exit_stack.enter_async_context(make())
            resource: T = self._resources[kind]
            return resource

    def get_existing(self, kind: type[T]) -> T | None:
        """Return the one object of that kind; None before its first use."""
        return self._resources.get(kind)

    def metric_samples(self) -> list[Any]:
        """Return the metrics of all shared objects that have a method `metric_samples`."""
        return [
            each
            for resource in self._resources.values()
            if callable(samples_of := getattr(resource, "metric_samples", None))
            for each in samples_of()
        ]

    async def close(self) -> None:
        """Close all resources, the last opened first."""
        self._resources.clear()
        await self._exit_stack.aclose()


@dataclass(slots=True)
class Usage:
    """Usage that an attempt has reported so far."""

    tokens: int | None = None
    """Tokens used; None where none were reported."""


class Compute(Protocol):
    """Runs CPU-bound work outside of the event loop."""

    async def __call__(self, work: Callable[..., Any], *args: Any, characters: int) -> Any: ...


class InProcess(Protocol):
    """Runs work on files from outside in a process of its own."""

    async def __call__(
        self, work: Callable[..., Any], *args: Any, timeout: float, memory_limit_mb: int
    ) -> Any: ...


class ProcessCrashed(RetryableError):
    """The process in which a part of a job ran has died."""


async def in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Run the work in a thread; return its result, or raise its error. StopIteration becomes a
    RuntimeError, as in a coroutine: a future can't hold it, and the caller would wait for ever."""

    def call() -> Any:
        try:
            return work(*args)
        except StopIteration as error:
            raise RuntimeError("work in a thread raised StopIteration") from error

    return await asyncio.to_thread(call)


async def _in_thread_unlimited(
    work: Callable[..., Any], *args: Any, timeout: float, memory_limit_mb: int
) -> Any:
    async with asyncio.timeout(timeout):
        return await in_thread(work, *args)


async def _in_thread(work: Callable[..., Any], *args: Any, characters: int) -> Any:
    return await in_thread(work, *args)


@dataclass(frozen=True, slots=True)
class JobContext:
    """One attempt of one job. Handlers in a process of their own get a copy of it."""

    message: JobMessage
    lane: str
    worker_id: str
    settings: Settings
    ledger: Ledger | None = field(default=None, compare=False)
    """The ledger; None for a handler in a process of its own."""
    is_cancelled: Callable[[], bool] = field(default=_never, compare=False)
    """Returns True once the job was cancelled: a long handler should then stop soon."""
    shared: ProcessResources | None = field(default=None, compare=False)
    """Resources that handlers share; None in a process of its own, or in a test."""
    compute: Compute = field(default=_in_thread, compare=False)
    """`await ctx.compute(work, *args, characters=n)`: CPU-bound work on a text from outside of that
    length, for handlers in the event loop. A long text goes to a process that is killed when the
    job's time is up, so `work` must be at the top level of its module."""

    in_process: InProcess = field(default=_in_thread_unlimited, compare=False)
    """`await ctx.in_process(work, *args, timeout=60, memory_limit_mb=1024)`: a part of a job that
    opens a file from outside, for handlers in the event loop. `work` must be at the top level of
    its module. Its process is killed after that many seconds, or beyond that much address space
    (MiB). Raises TimeoutError, MemoryError, ProcessCrashed, and what `work` raises."""

    last_checkpoint: Any = field(default=None, compare=False)
    """The value that an earlier attempt at this job gave to `checkpoint` last; None where there is
    none. It survives the death of its worker, except for a value from the last second, and is
    removed when the job has succeeded or its payload is changed."""
    progress_buffer: ProgressBuffer = field(
        default_factory=ProgressBuffer, compare=False, repr=False
    )
    """Buffer that `progress` and `checkpoint` write to."""

    output: OutputStream = field(default_factory=OutputStream, compare=False, repr=False)
    """`ctx.output.write(text)` streams the job's output to its followers (`GET /jobs/{id}/events`)
    piece by piece, for handlers in the event loop: best effort, and not stored."""

    @property
    def tags(self) -> Mapping[str, str]:
        """The job's tags; jobs that follow from it have them, too."""
        return self.message.metadata.tags

    def progress(self, fraction: float | None, note: str = "") -> None:
        """Report the progress: 0 to 1 of the work (None where unknown), and a few
        words, of which 200 characters are kept. Costs about a microsecond and waits for nothing: of
        many reports, the last of each second is recorded and announced, and always the last of all.

        Raises TypeError or ValueError if `fraction` is no number or `note` no text.
        """
        self.progress_buffer.report(fraction, note)

    def checkpoint(self, data: Any) -> None:
        """Store a checkpoint, as JSON of 64 KiB at most, from which the next attempt can continue:
        it is `last_checkpoint` there. It replaces the one before, and is recorded like progress.

        Raises InvalidCheckpoint for data that is no JSON, or too large.
        """
        self.progress_buffer.keep(data)

    joined_jobs: Sequence[JoinedJob] | None = field(default=None, compare=False)
    """Jobs that `joined` yields in a test; None: it asks the ledger."""

    async def joined(self, *, state: str | None = None) -> AsyncIterator[JoinedJob]:
        """Yield the jobs that this one has waited for, as `Next.then`: those of `Next.jobs` in
        their order, then those that followed from them; only those in a state where one is named.
        Read in pages, so that there may be any number.

        Raises LedgerUnavailable, and RuntimeError in a process of its own, which has no ledger.
        """
        if self.joined_jobs is not None:
            for job in self.joined_jobs:
                if state in (None, job.state):
                    yield job
            return
        if self.ledger is None:
            raise RuntimeError(
                'a handler with isolation="process" can\'t ask for joined jobs: without it, give '
                "the work to `ctx.compute` or `ctx.in_process`"
            )
        after: tuple[float, str] | None = None
        while True:
            page, after = await self.ledger.joins.joined_jobs(
                self.job_id, after=after, state=state, limit=JOINED_PAGE
            )
            for job in page:
                yield job
            if after is None:
                return

    usage: Usage = field(default_factory=Usage, compare=False, repr=False)

    def report_usage(self, *, tokens: int) -> None:
        """Report tokens that were used, after each use: their sum replaces the estimate of
        the job's limits. Raises ValueError for a negative number."""
        if tokens < 0:
            raise ValueError(f"tokens must be 0 or more, not {tokens}")
        self.usage.tokens = min((self.usage.tokens or 0) + int(tokens), MAX_TOKENS)

    @property
    def job_id(self) -> str:
        return self.message.job_id

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.message.metadata.attempts + 1

    @property
    def pipeline(self) -> str:
        """Identifies the run of a pipeline that the job belongs to; its own id at the start."""
        return self.message.metadata.pipeline or self.message.job_id
