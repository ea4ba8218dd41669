"""Report a worker's attempts: in its log, in its counters, and as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from switchyard.broker.dead.dead_letter_headers import MESSAGE_LIMIT
from switchyard.services.engine.jobs.retry import Delayed, Died, Failure, Succeeded
from switchyard.services.engine.ledger.sql.clock import Clock
from switchyard.services.engine.monitoring.job_events import PROGRESS, TEXT
from switchyard.services.engine.records.progress import ReportedProgress
from switchyard.services.engine.runtime.attempt_endings import CancelledWhileRunning, Ending
from switchyard.services.engine.runtime.attempt_metrics import AttemptMetrics
from switchyard.services.engine.runtime.running_job import RunningJob

TRACEBACK_LIMIT = 4_000
"""Characters kept of a traceback in the log: its end, where the error is."""


@dataclass(slots=True)
class Counters:
    """Counts of a worker since it started."""

    succeeded: int = 0
    retried: int = 0
    snoozed: int = 0
    dead: int = 0
    malformed: int = 0
    """Malformed messages among the dead ones: unreadable, with the id of another job, or with an
    invalid payload."""
    cancelled: int = 0
    skipped: int = 0
    """Deliveries of jobs that had ended before, or of older copies."""
    returned: int = 0
    """Deliveries that went back to their queue: the worker stopped, or the ledger was away."""
    put_off: int = 0
    """Deliveries that were refused a permit of a named limit."""
    hot: int = 0
    """Hot jobs that were claimed."""

    def count_malformed(self) -> None:
        """Count a message that was dead-lettered without a run."""
        self.dead += 1
        self.malformed += 1


@dataclass
class AttemptReporter:
    """Logs, counts and announces the attempts of one worker."""

    announce: Callable[..., None]
    """Publishes an event, like `monitoring.job_events.announce`."""
    worker_id: str
    clock: Clock
    counters: Counters = field(default_factory=Counters)
    metrics: AttemptMetrics | None = None
    """Metrics of the attempts; None if they are not exposed."""
    logs: bool = True
    """Whether the ends of attempts are logged; False inside a user's program, which gets the
    results and owns its output."""

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("worker")

    def report_start(self, job: RunningJob) -> None:
        """Count and announce that the handler of a job is about to run."""
        if self.metrics is not None:
            self.metrics.add_start(job.message, job.lane, self.clock.time())
        self._announce("started", job)

    def announce_progress(self, job: RunningJob, progress: ReportedProgress) -> None:
        """Announce progress of a handler that is recorded in the ledger."""
        self._announce(PROGRESS, job, progress)

    def announce_text(self, job: RunningJob, text: str, offset: int) -> None:
        """Announce text that a handler has written, after `offset` characters."""
        self._announce(TEXT, job, text=(text, offset))

    def report_end(self, job: RunningJob, ending: Ending) -> None:
        """Count, log and announce the end of an attempt whose delivery is acknowledged."""
        seconds = max(0.0, self.clock.time() - job.started_at)
        if self.metrics is not None:
            self.metrics.add_end(job.message, job.lane, seconds, ending)
        if self.logs:
            self._log_end(ending, seconds)
        match ending:
            case Succeeded():
                self.counters.succeeded += 1
                self._announce("succeeded", job)
            case Delayed():
                self.counters.retried += ending.counts
                self.counters.snoozed += not ending.counts
                self._announce("retrying", job)
            case Died():
                self.counters.dead += 1
                self._announce("dead", job)
            case CancelledWhileRunning():
                self.counters.cancelled += 1
                self._announce("cancelled", job)

    def _log_end(self, ending: Ending, seconds: float) -> None:
        match ending:
            case Succeeded():
                self._log.debug("job succeeded", seconds=round(seconds, 3))
            case Delayed():
                self._log.warning(
                    "job retried" if ending.counts else "job snoozed",
                    delay=ending.seconds,
                    error_type=ending.failure.error_type,
                    error=ending.failure.message[:MESSAGE_LIMIT],
                    # Where no attempt is used up, nothing failed: a service is busy or away.
                    **(_traceback(ending.failure) if ending.counts else {}),
                )
            case Died():
                self._log.error(
                    "job dead",
                    reason=str(ending.reason),
                    error_type=ending.failure.error_type,
                    error=ending.failure.message[:MESSAGE_LIMIT],
                )
            case CancelledWhileRunning():
                self._log.info("job cancelled")

    def _announce(
        self,
        event: str,
        job: RunningJob,
        progress: ReportedProgress | None = None,
        text: tuple[str, int] | None = None,
    ) -> None:
        message = job.message
        self.announce(
            event,
            job_id=message.job_id,
            job_type=message.job_type,
            lane=job.lane,
            attempt=message.metadata.attempts + 1,
            worker_id=self.worker_id,
            progress=progress,
            text=text,
        )


def _traceback(failure: Failure) -> dict[str, str]:
    """Return the traceback as a log field of a retry. Only the log has it; that of a death is in
    the dead letter."""
    return {"traceback": failure.traceback[-TRACEBACK_LIMIT:]} if failure.traceback else {}
