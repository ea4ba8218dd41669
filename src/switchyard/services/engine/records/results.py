"""Results of the ledger's methods. All times are seconds since the epoch, as floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from switchyard.broker.message import JobMessage
from switchyard.services.common.traceparent import trace_id_of
from switchyard.services.engine.records.progress import ProgressRecord
from switchyard.services.engine.records.states import WAITING, State

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Created:
    """The job was recorded now."""

    job_id: str
    receipt: str = field(default="", compare=False)
    """Token with which the record can be removed again, as long as no other caller relies on it."""
    notice_id: str | None = field(default=None, compare=False)
    """Id of the job that sends the notice of its end; rolled back together with the job."""
    paused: bool = False
    """Whether a pause holds the job: it must not be published."""


@dataclass(frozen=True, slots=True)
class Existing:
    """A job with that id or idempotency key exists: nothing was changed."""

    job_id: str
    """Id of the existing job; with an idempotency key, it may differ from that of the request."""
    state: State


Recorded = Created | Existing


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim was granted: the worker runs the job until it finishes it or dies."""

    crashes: int
    """Claims of this generation that ended with the worker's death; 0 after a redrive."""
    has_checkpoint: bool = False
    """Whether an earlier attempt has stored a checkpoint."""
    unended: int = 0
    """Runs since the last one that ended, in this redrive: the workers of these runs died, were
    stopped, or gave the job back."""
    join_id: str | None = None
    """The job that waits for this one, and for what follows from it."""
    joins: bool = False
    """Whether it has waited for other jobs."""
    message: JobMessage | None = field(default=None, compare=False)
    """The message with the metadata of the ledger's record; None where they agree."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job has already ended: acknowledge the delivery and skip it."""

    state: State


@dataclass(frozen=True, slots=True)
class StillJoining:
    """The job waits for other jobs and is published when they have ended: acknowledge an earlier
    delivery and skip it."""


@dataclass(frozen=True, slots=True)
class HeldByPause:
    """A pause holds the job in the ledger: acknowledge the delivery and skip it."""

    by: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer copy of the job has been seen: acknowledge the delivery and skip it."""

    redrives: int
    attempts: int


@dataclass(frozen=True, slots=True)
class HeldByWorker:
    """Another worker runs the job. Watch its heartbeat; when it is dead, claim with
    `takeover_from`."""

    worker_id: str
    claim_id: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker died while it ran the job, and the request said `defers_suspects`: the job is queued
    again, not claimed. Send the delivery back for later, or claim without `defers_suspects`."""

    crashes: int
    """As in `Claimed`."""


@dataclass(frozen=True, slots=True)
class IdCollision:
    """The message has the id of another job: its type or payload differs, or it claims a redrive
    that was not requested, or has a time in the future. The job's record stays unchanged."""


ClaimResult = (
    Claimed
    | HeldByPause
    | Finished
    | StillJoining
    | Superseded
    | HeldByWorker
    | Suspect
    | IdCollision
)


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The end of an attempt was recorded."""

    due: list[str] = field(default_factory=list)
    """Jobs that waited for this one and may be published now: they are `pending`."""
    state: State | None = field(default=None, compare=False)
    """The job's new state: cancelled if that was requested, instead of the one of the attempt."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job will not run; its delivery is skipped when it comes."""


@dataclass(frozen=True, slots=True)
class Running:
    """The job runs, and only its worker can stop it. The request is recorded, so the job never runs
    again: unless this attempt succeeds, the job is cancelled at its end."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class AlreadyFinished:
    """There is nothing to cancel."""

    state: State


@dataclass(frozen=True, slots=True)
class NoSuchJob:
    """The ledger has no such job."""


CancelResult = Cancelled | Running | AlreadyFinished | NoSuchJob


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt that did not simply succeed."""

    redrive: int
    attempt: int
    """Number of the attempt, from 1 in each redrive."""
    worker_id: str | None
    started_at: float | None
    finished_at: float
    outcome: str
    error_type: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job without its payload and result."""

    id: str
    job_type: str
    lane: str
    routing_key: str
    worker: str
    priority: int
    state: State
    source: str
    parent_id: str | None
    pipeline: str | None
    attempts: int
    """Attempts used up."""
    max_attempts: int
    redrives: int
    crashes: int
    worker_id: str | None
    """Worker that runs it, or ran it last."""
    claim_id: str | None
    """Fencing token of its last claim."""
    created_at: float
    queued_at: float | None
    started_at: float | None
    finished_at: float | None
    updated_at: float
    run_at: float | None
    expires_at: float | None
    reason: str | None
    error_type: str | None
    error_message: str | None
    idempotency_key: str | None
    join_id: str | None
    """The job that waits for this one, and for what follows from it."""
    joins: bool
    """Whether it waits, or has waited, for other jobs."""
    operation_id: str | None
    """The backfill or rerun that published it, or the job that it followed from."""
    cancel_asked_at: float | None = field(default=None, kw_only=True)
    """When its cancellation was first requested while it ran."""
    tags: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    progress: ProgressRecord | None = field(default=None, kw_only=True)
    """Progress of its last attempt, where its handler reports it."""

    @property
    def waits(self) -> bool:
        """Whether it has neither begun nor ended, nor waits for other jobs."""
        return self.state in WAITING

    @property
    def begun_attempts(self) -> int:
        """Attempts used up, and the one that runs or has just succeeded."""
        return self.attempts + (self.state in (State.RUNNING, State.SUCCEEDED))


@dataclass(frozen=True, slots=True)
class JobRecord(JobSummary):
    """A job with its payload and result."""

    payload: dict[str, Any]
    envelope: dict[str, Any]
    """The message without its payload: `metadata`, and fields that this version does not know."""
    result: dict[str, Any] | None
    timeline: tuple[AttemptRecord, ...] = ()
    """Attempts that did not simply succeed, oldest first; only from `JobReads.get`."""
    checkpoint_at: float | None = None
    """When an attempt stored a checkpoint for the next one; only from `JobReads.get`."""

    @property
    def rerun_of(self) -> str | None:
        """Id of the job that this one reruns; None if it is not a rerun."""
        job_id = self.envelope.get("metadata", {}).get("rerun_of")
        return job_id if isinstance(job_id, str) else None

    @property
    def trace_id(self) -> str | None:
        """Trace id of the job; None where it belongs to no trace."""
        traceparent = self.envelope.get("metadata", {}).get("traceparent")
        return trace_id_of(traceparent if isinstance(traceparent, str) else None)


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Part of a listing."""

    items: tuple[Item, ...]
    next_cursor: str | None
    """Cursor of the next page; None after the last."""


@dataclass(frozen=True, slots=True)
class JobListing(Page[JobSummary]):
    """Part of a listing of jobs. It may have fewer than were asked for although more follow."""

    examined_since: float | None = None
    """Set where no index finds the jobs that match, and only those that were made since then were
    examined; the next page examines older ones."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as the ledger knows it."""

    id: str
    job_id: str | None
    job_type: str | None
    lane: str | None
    routing_key: str | None
    reason: str
    error_type: str | None
    error_message: str | None
    traceback: str | None
    attempts: int
    redrives: int
    worker: str | None
    first_at: float
    """When the first letter of this id died."""
    dead_at: float
    """When the present letter died."""
    body: bytes
    headers: Mapping[str, Any]
    copies: int
    """Letters of this id that were seen since it last began to wait."""
    state: str
    """waiting, redriven, purged or dropped."""
    updated_at: float
    fingerprint: str | None
    """Id of the group of letters with the same cause of death."""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one cause."""

    fingerprint: str
    count: int
    first_at: float
    """When the first of them died."""
    last_at: float
    trend: tuple[int, ...]
    """Deaths in each of the last 24 hours, the latest last."""
    sample: DeadLetter
    """The one that died last."""


TIMED_OUT = "TimeLimitExceeded"
"""The error type of jobs that ran longer than they may."""

UNKNOWN_TYPE = "UnknownJobType"
"""The error type of jobs that a worker has sent on because it does not know their type."""

NEWER_PAYLOAD = "NewerPayload"
"""The error type of jobs that a worker has sent on because it knows only older versions of their
payload."""


@dataclass(frozen=True, slots=True)
class UnknownTypeReport:
    """A job type, or version of one, that a worker got jobs of and does not know."""

    worker_id: str
    job_type: str
    jobs: int
    """Jobs that it passed on and that no other worker has claimed yet."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """Load of one kind of worker."""

    oldest: float | None
    """When the longest waiting job entered its queue; None where none waits."""
    running: Mapping[int, int]
    """Number of running jobs, by the PIDs of one host."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """Unfinished jobs in the ledger at one moment. Times are seconds since the epoch."""

    open_jobs: Mapping[tuple[str, str], int]
    """Number of jobs by lane and state."""
    oldest: Mapping[tuple[str, str], float]
    """When the longest waiting queued job entered its queue, by lane and worker."""
    oldest_pending: float | None
    """When the oldest job without the broker's confirm was recorded."""
    dead: Mapping[tuple[str, str], int]
    """Dead letters that wait, by lane ("" where that is unknown) and reason."""
    bulk: Mapping[tuple[str, str], int]
    """Bulk operations that have not ended, by kind and state."""
    bulk_progress: Mapping[str, float]
    """When the running bulk operation that has stood still longest last made progress, by kind."""


@dataclass(frozen=True, slots=True)
class LaneMinute:
    """Counts of one lane for one minute. Times are seconds since the epoch."""

    at: float
    """End of the minute, a whole minute of wall-clock time."""
    lane: str
    counted_at: float
    published: int
    ended: int
    dead: int
    open_jobs: int
    """Unfinished jobs at the time of the count."""
    ready: int | None
    """Messages that waited in the lane's queues; None where the broker was away."""
    wait_p50: float | None
    """Median wait, in seconds, of jobs that began in the minute; of the hot lane alone, None where
    none did."""
    wait_p99: float | None


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker process."""

    worker_id: str
    kinds: tuple[str, ...]
    lanes: tuple[str, ...]
    host: str
    pid: int
    concurrency: int
    started_at: float
    beat: int
    """Counts up while it lives; compare two readings, not clocks."""
    beat_at: float
    """When its last heartbeat was, by the database's clock, as the next two times."""
    stopped_at: float | None
    hot_at: float | None
    """Its last heartbeat that reported a hot job begun since the one before."""
    mark: str | None = None
    """Identification of its process (`instance_ids.process_mark`)."""
    job_types: frozenset[str] | None = None
    """Job types that it can run; None where it has not reported them."""
    memory_bytes: int | None = None
    """Bytes of memory at its last heartbeat (`process_memory`); None where it did not report
    them."""
    stopping_at: float | None = None
    """Since when it takes no more jobs, and waits for its running ones to end."""

    def runs(self, kind: str, job_type: str) -> bool:
        """Tell whether it serves that kind of worker, and knows that type or has not reported its
        types."""
        return kind in self.kinds and (self.job_types is None or job_type in self.job_types)


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """A job type that ran in a worker when the worker ended without reporting it."""

    worker_id: str
    job_type: str


@dataclass(frozen=True, slots=True)
class LoopBlock:
    """A time in which one callback blocked an event loop."""

    id: str
    worker_id: str
    job_id: str | None
    """Job that it ran; None where unknown."""
    job_type: str | None
    place: str
    """The code that ran: file, line and function."""
    began_at: float
    """Seconds since the epoch, by the ledger's clock."""
    seconds: float
    ended: bool
    """False while the block lasts, and for ever where the worker died of it: then `seconds` is the
    duration until its last report."""
