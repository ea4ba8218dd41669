"""Take an attempt from its claim to the record of its end, with a broker or without.

run the handler → classify its outcome → publish what follows → record

What follows from an attempt is published before the ledger records the attempt's end: a crash in
between repeats work and loses none. The given `FollowUps` decides where follow-up jobs go;
the caller of `run` decides where jobs come from and when a delivery is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import structlog
from pydantic import BaseModel

from switchyard.broker.message import JobMessage
from switchyard.services.common.settings import Settings
from switchyard.services.common.traceparent import trace_id_of
from switchyard.services.engine.jobs.context import JobContext, ProcessResources
from switchyard.services.engine.jobs.output_stream import OutputStream
from switchyard.services.engine.jobs.progress_buffer import ProgressBuffer
from switchyard.services.engine.jobs.registry import JobType, Registry
from switchyard.services.engine.jobs.retry import Failure, RetryPolicy
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerMisconfigured,
    LedgerUnavailable,
    SchemaOutdated,
)
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.runtime.attempt_endings import (
    CancelledWhileRunning,
    Ending,
    classify,
    end_unwritable,
    inherit_join,
    remove_secrets,
)
from switchyard.services.engine.runtime.attempt_reporter import AttemptReporter
from switchyard.services.engine.runtime.attempt_writer import AttemptWriter
from switchyard.services.engine.runtime.execution import Executor
from switchyard.services.engine.runtime.progress_writer import ProgressWriter
from switchyard.services.engine.runtime.running_job import ClaimLost, RunningJob, is_from_outside

LEDGER_UNUSABLE = (LedgerUnavailable, LedgerMisconfigured, LedgerClosed, SchemaOutdated)
"""Errors of the ledger that are not the job's fault: other jobs would get them, too."""

ResolvedJob = tuple[JobType, BaseModel]
"""The type of a job, and its payload as that type reads it."""
J = TypeVar("J", bound=RunningJob)
J_contra = TypeVar("J_contra", bound=RunningJob, contravariant=True)


class FollowUps(Protocol[J_contra]):
    """Publishes what follows from attempts."""

    policy: RetryPolicy
    keeps_letters: bool
    """Whether dead letters are also stored on the broker; then the indexer writes them into the
    ledger later."""

    async def publish(self, job: J_contra, ending: Ending, jobs: Sequence[NewJob]) -> Ending:
        """Publish what follows from an attempt, and return how the attempt ends after that. `jobs`
        are the next stages of one that has succeeded. Raises ClaimLost."""
        ...


@dataclass
class AttemptLifecycle(Generic[J]):
    """Runs one attempt of each claimed job."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    executor: Executor
    follow_up: FollowUps[J]
    attempt_writer: AttemptWriter
    reporter: AttemptReporter
    resources: ProcessResources

    def __post_init__(self) -> None:
        self._progress = ProgressWriter(self.ledger)
        self._log = structlog.get_logger("worker")

    async def run(
        self,
        job: J,
        resolved: ResolvedJob | None,
        confirm: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[Ending, list[str]]:
        """Run a claimed job once, unless it has a verdict; publish what follows, and record how
        the attempt has ended.

        `task` is what to run, None for a job that has a verdict. `confirm` is awaited first and
        may give the job a verdict; an error of it fails the attempt. Returns the ending and the ids
        of the jobs that are due now. Raises ClaimLost, and LEDGER_UNUSABLE.
        """
        return await self._conclude(job, await self._attempt(job, resolved, confirm))

    async def _attempt(
        self, job: J, resolved: ResolvedJob | None, confirm: Callable[[], Awaitable[None]] | None
    ) -> Any:
        """Return the handler's outcome, or a Failure of the handler or of `confirm`. None
        for a job that has a verdict."""
        try:
            if confirm is not None:
                await confirm()
            return await self._run_handler(job, *resolved) if resolved and not job.verdict else None
        except LEDGER_UNUSABLE:
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            return Failure.from_error(error)

    async def _conclude(self, job: J, outcome: Any) -> tuple[Ending, list[str]]:
        """Publish what follows from the attempt, and record its end. If the ending can't be
        written, the job is dead instead."""
        outcome = remove_secrets(self.registry, job.message, outcome)
        try:
            ending, jobs = await self._classify(job, outcome)
            ending = await self.follow_up.publish(job, ending, inherit_join(job.join_id, jobs))
            return await self.attempt_writer.record_end(job, ending)
        except (ClaimLost, *LEDGER_UNUSABLE):
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            died = end_unwritable(job.message, outcome, error)
        log_failure("attempt end not written", died.failure)
        ending = await self.follow_up.publish(job, died, ())
        try:
            return await self.attempt_writer.record_end(job, ending)
        except (ClaimLost, *LEDGER_UNUSABLE):
            raise
        except BaseException as error:
            if is_from_outside(error) or not self.follow_up.keeps_letters:
                raise
            # The indexer of dead letters will write it into the ledger.
            log_failure("dead letter not recorded", Failure.from_error(error))
            return ending, []

    async def _classify(self, job: J, outcome: Any) -> tuple[Ending, Sequence[NewJob]]:
        """Decide how the attempt ends, and which jobs follow."""
        if job.verdict is not None:
            return job.verdict, ()
        return await classify(
            self.registry,
            job.message,
            job.lane,
            outcome,
            self.follow_up.policy,
            now=self.ledger.clock.now(),
            max_result_bytes=self.settings.max_result_bytes,
            ids=job.ids,
            crashes=job.crashes,
        )

    async def _run_handler(self, job: J, job_type: JobType, payload: BaseModel) -> Any:
        """Run the handler; return its outcome or its failure. If the job is cancelled meanwhile,
        set its verdict."""
        checkpoint = None
        if job.has_checkpoint:
            checkpoint = await self._progress.last_checkpoint(job.message)
        self.reporter.report_start(job)
        announce = partial(self.reporter.announce_progress, job)
        async with self._progress.buffer_for(job.message, job.claim_id, announce) as buffer:
            ctx = self._context(job, checkpoint, buffer)
            # Only the handler may be cancelled: publishing and recording must be completed.
            job.handler = asyncio.current_task()
            try:
                return await self.executor.run(job_type, payload, ctx, suspect=job.crashes > 0)
            except asyncio.CancelledError:
                if not job.cancel_requested:
                    raise
                if job.handler is not None:
                    job.handler.uncancel()
                job.verdict = CancelledWhileRunning()
                return None
            finally:
                ctx.output.end()
                job.handler = None

    def _context(self, job: J, last_checkpoint: Any, buffer: ProgressBuffer) -> JobContext:
        return JobContext(
            message=job.message,
            lane=job.lane,
            worker_id=self.reporter.worker_id,
            settings=self.settings,
            ledger=self.ledger,
            shared=self.resources,
            is_cancelled=lambda: job.cancel_requested,
            compute=self.executor.compute,
            in_process=self.executor.in_process,
            last_checkpoint=last_checkpoint,
            progress_buffer=buffer,
            usage=job.usage,
            output=OutputStream(partial(self.reporter.announce_text, job)),
        )


def log_failure(event: str, failure: Failure) -> None:
    """Log a failure as text: its exception may raise when it is formatted."""
    structlog.get_logger("worker").error(
        event,
        error_type=failure.error_type,
        error=failure.message,
        traceback=failure.traceback,
    )


def log_fields(message: JobMessage) -> dict[str, Any]:
    """Return the fields that mark the log lines of an attempt, the id of its trace included."""
    fields: dict[str, Any] = {
        "job_id": message.job_id,
        "job_type": message.job_type,
        "attempt": message.metadata.attempts + 1,
    }
    trace_id = trace_id_of(message.metadata.traceparent)
    return fields if trace_id is None else {**fields, "trace_id": trace_id}
