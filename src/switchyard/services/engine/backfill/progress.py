"""Report the progress of a backfill: how far it is, when it will end, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from switchyard.services.engine.backfill.counts import Counts, ProgressPoint
from switchyard.services.engine.backfill.spec import then_id_of
from switchyard.services.engine.bulk.runner import MAX_CONCURRENT
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import (
    ACTIVE,
    STOPPED,
    BulkDeaths,
    BulkOperation,
    BulkState,
)
from switchyard.services.engine.records.states import FINISHED, State

RATE_SPANS = (60.0, 600.0)
"""Seconds over which rates are averaged, in addition to the rate since the start."""
UNATTENDED_SECONDS = 5.0
"""Seconds without a scheduler after which `BackfillProgress.note` reports that."""
MIN_SPAN = 5.0
"""Seconds that a backfill must have run before its end is estimated."""


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill at one moment."""

    operation: BulkOperation
    now: float
    """Seconds since the epoch, by the ledger's clock: this host's may be wrong."""
    total: int | None
    """Items in all; None where the source does not know."""
    read: int
    published: int
    skipped: int
    repeated: int
    """Items with the key of an earlier item; known once all items are published."""
    exhausted: bool
    """Whether the source was read to its end: no more jobs will be published."""
    notes: tuple[str, ...]
    """Why items were skipped; the first 50."""
    jobs: Mapping[State, int]
    """Its jobs by state."""
    followers: Mapping[State, int]
    """The jobs that followed from them, by state."""
    rate: float | None
    """Jobs per second that finished in the last minute; None at the start."""
    eta: tuple[float, float] | None
    """Remaining seconds, at the best and at the worst of its rates so far; None where unknown."""
    deaths: tuple[BulkDeaths, ...]
    """Dead jobs by cause, followers included."""
    then_id: str | None
    """Id of the job that follows its end; None where there is none."""

    @property
    def done(self) -> int:
        """Its own jobs that have succeeded."""
        return self.jobs.get(State.SUCCEEDED, 0)

    @property
    def finished(self) -> int:
        """Its own jobs that have succeeded or died; cancelled ones are not counted."""
        return self.done + self.jobs.get(State.DEAD, 0)

    @property
    def dead(self) -> int:
        """Dead jobs, followers included."""
        return self.jobs.get(State.DEAD, 0) + self.followers.get(State.DEAD, 0)

    @property
    def note(self) -> str | None:
        """Reason for its present state; or a hint that no process runs it."""
        operation = self.operation
        idle = self.now - (operation.lease_until or operation.updated_at)
        if operation.state in ACTIVE and idle > UNATTENDED_SECONDS:
            return (
                f"no scheduler has had it for {idle:,.0f} s: is `jobctl scheduler` running? One "
                f"runs {MAX_CONCURRENT} at once"
            )
        return operation.note

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens without an operator."""
        return self.operation.state in STOPPED

    @property
    def succeeded(self) -> bool:
        """Whether it has completed, without dead jobs or skipped items."""
        return self.operation.state is BulkState.COMPLETED and not (self.dead or self.skipped)

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its end, or until now."""
        started = self.operation.started_at
        if started is None:
            return None
        return (self.operation.finished_at or self.now) - started


async def progress_of(ledger: Ledger, operation: BulkOperation) -> BackfillProgress:
    """Return how far a backfill is. Raises LedgerUnavailable."""
    counts = Counts.from_json(operation.counts)
    own, followers = await ledger.bulk_jobs.count_bulk_jobs(operation.id)
    finished = sum(number for state, number in own.items() if state in FINISHED)
    is_dead = own.get(State.DEAD) or followers.get(State.DEAD)
    deaths = await ledger.bulk_jobs.bulk_deaths(operation.id) if is_dead else []
    samples = counts.samples
    ids = await ledger.system.job_ids()
    remaining = None if counts.total is None else max(0, counts.total - counts.skipped - finished)
    if counts.exhausted:
        remaining = counts.published - finished
    is_active = operation.state in (BulkState.RUNNING, BulkState.DRAINING)
    return BackfillProgress(
        operation=operation,
        now=ledger.clock.time(),
        total=counts.total,
        read=counts.read,
        published=counts.published,
        skipped=counts.skipped,
        repeated=counts.repeated,
        exhausted=counts.exhausted,
        notes=tuple(counts.notes),
        jobs=own,
        followers=followers,
        rate=_rate(samples, RATE_SPANS[0]) if is_active else None,
        eta=_eta(samples, remaining) if is_active and remaining else None,
        deaths=tuple(deaths),
        then_id=then_id_of(ids, operation.id) if operation.spec.get("then") else None,
    )


def _rate(samples: list[ProgressPoint], seconds: float) -> float | None:
    """Return the finished jobs per second over the last `seconds` of the samples; None while there
    are too few."""
    if len(samples) < 2:
        return None
    last = samples[-1]
    first = next(sample for sample in samples if last.at - sample.at <= seconds)
    if first is last:
        first = samples[-2]
    span = last.at - first.at
    return (last.finished - first.finished) / span if span >= MIN_SPAN else None


def _eta(samples: list[ProgressPoint], remaining: int) -> tuple[float, float] | None:
    """Return the remaining seconds at the highest and at the lowest known rate."""
    rates = [_rate(samples, seconds) for seconds in (*RATE_SPANS, float("inf"))]
    known_rates = [rate for rate in rates if rate]
    return (remaining / max(known_rates), remaining / min(known_rates)) if known_rates else None
