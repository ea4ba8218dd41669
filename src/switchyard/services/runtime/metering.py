"""What a worker's metrics say of its jobs. What can be worked out later is left until then: amid
the work of a job, whose code and data fill the processor's caches, a sum costs several times as
much as among its like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.dead.certificate import Reason
from switchyard.broker.message import JobMessage
from switchyard.services.jobs.registry import Registry
from switchyard.services.jobs.retry import Died, Succeeded
from switchyard.services.ledger.sql.clock import Clock
from switchyard.services.monitoring import metric_names as names
from switchyard.services.monitoring.distribution import Distribution
from switchyard.services.monitoring.metric_names import LLM, OTHER, Distributions, Metric, Samples
from switchyard.services.monitoring.metrics import Metrics
from switchyard.services.runtime.endings import SUCCEEDED, Ending, outcome_of

NOTED: Final = 500
"""Starts and ends that are only noted, until there are so many or somebody scrapes."""


@dataclass(slots=True)
class _Spent:
    """What the jobs of one type have taken."""

    seconds: Distribution = field(default_factory=names.DURATION.distribution)
    attempts: Distribution = field(default_factory=names.ATTEMPTS_USED.distribution)


@dataclass(slots=True)
class _Tally:
    """Attempts of one type, lane and outcome: all that one of them is counted in, found at once."""

    spent: _Spent
    """Of the type, whatever the lane and the outcome."""
    answered: Distribution | None
    """Of a model's answers of this type; None for all else. An attempt that went back for want of a
    server has none, and would pass for a slow answer."""
    ended: int = 0


class Meter:
    """Counts the attempts of one process, in its event loop."""

    def __init__(
        self, metrics: Metrics, registry: Registry, clock: Clock, kinds: Iterable[str] = ()
    ) -> None:
        """`kinds` are those that the process works."""
        self._clock = clock
        self._worker_of = {each.name: each.worker for each in registry}
        self._waits: dict[tuple[str, str], Distribution] = {}
        """By worker and lane."""
        self._spent: dict[tuple[str, str], _Spent] = {}
        """By worker and type."""
        self._answered: dict[str, Distribution] = {}
        """By type."""
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        """By type, lane and outcome."""
        self._starts: list[tuple[str, str, datetime, float]] = []
        """Noted: type, lane, when the job entered it, and when it was started."""
        self._ends: list[tuple[str, str, str, float, int | None]] = []
        """Noted: type, lane, outcome, seconds, and the attempts used if the job has ended."""
        worked = set(kinds)
        # Shown as none: Prometheus sees a first crash only where it has seen that.
        self._deaths: dict[tuple[str, ...], int] = {
            (each.worker, lane, each.name, Reason.CRASHED.value): 0
            for each in registry
            if each.worker in worked
            for lane in each.lanes
        }
        metrics.show(self.counted)
        metrics.show_histograms(self.distributed)

    def started(self, message: JobMessage, lane: str) -> None:
        """The handler of a job is about to run."""
        metadata = message.metadata
        if metadata.attempts == 0:
            entered = metadata.queued_at or metadata.created_at
            self._starts.append((message.job_type, lane, entered, self._clock.time()))
            if len(self._starts) >= NOTED:
                self._count_starts()

    def ended(self, message: JobMessage, lane: str, started_at: float, ending: Ending) -> None:
        """Its attempt, begun then, has ended so, which the ledger has."""
        used = None
        if isinstance(ending, Succeeded):
            used = message.metadata.attempts + 1
        elif isinstance(ending, Died):
            used = ending.attempts
            worker, job_type = self._labels(message.job_type)
            death = (worker, lane, job_type, str(ending.reason))
            self._deaths[death] = self._deaths.get(death, 0) + 1
        took = max(0.0, self._clock.time() - started_at)
        self._ends.append((message.job_type, lane, outcome_of(ending), took, used))
        if len(self._ends) >= NOTED:
            self._count_ends()

    def _count_starts(self) -> None:
        for job_type, lane, entered, started in self._starts:
            key = (self._worker_of.get(job_type, OTHER), lane)
            waits = self._waits.get(key)
            if waits is None:
                waits = self._waits[key] = names.WAIT.distribution()
            waits.add(max(0.0, started - entered.timestamp()))
        self._starts.clear()

    def _count_ends(self) -> None:
        for job_type, lane, outcome, took, used in self._ends:
            tally = self._tallies.get((job_type, lane, outcome))
            if tally is None:
                tally = self._new_tally(job_type, lane, outcome)
            tally.ended += 1
            tally.spent.seconds.add(took)
            if tally.answered is not None:
                tally.answered.add(took)
            if used is not None:
                tally.spent.attempts.add(used)
        self._ends.clear()

    def _new_tally(self, job_type: str, lane: str, outcome: str) -> _Tally:
        """The one of `other` for each type that is not registered: there may be any number."""
        worker, job_type = self._labels(job_type)
        spent = self._spent.setdefault((worker, job_type), _Spent())
        answered = None
        if worker == LLM and outcome == SUCCEEDED:
            answered = self._answered.setdefault(job_type, names.LLM_LATENCY.distribution())
        return self._tallies.setdefault((job_type, lane, outcome), _Tally(spent, answered))

    def _labels(self, job_type: str) -> tuple[str, str]:
        worker = self._worker_of.get(job_type)
        return (OTHER, OTHER) if worker is None else (worker, job_type)

    def counted(self) -> Iterable[tuple[Metric, Samples]]:
        """For `Metrics.show`."""
        self._count_ends()
        attempts: dict[tuple[str, ...], float] = {}
        asked: dict[tuple[str, ...], float] = {}
        for (job_type, lane, outcome), tally in self._tallies.items():
            worker, _ = self._labels(job_type)
            attempts[worker, lane, job_type, outcome] = float(tally.ended)
            if worker == LLM:
                asked[outcome, job_type] = asked.get((outcome, job_type), 0.0) + tally.ended
        return [
            (names.ATTEMPTS, attempts),
            (names.DEATHS, {key: float(number) for key, number in self._deaths.items()}),
            (names.LLM_PROCESSED, asked),
        ]

    def distributed(self) -> Iterable[tuple[Metric, Distributions]]:
        """For `Metrics.show_histograms`."""
        self._count_starts()
        self._count_ends()
        spent = self._spent.items()
        return [
            (names.DURATION, {labels: each.seconds for labels, each in spent}),
            (names.WAIT, dict(self._waits.items())),
            (names.ATTEMPTS_USED, {labels: each.attempts for labels, each in spent}),
            (
                names.LLM_LATENCY,
                {(job_type,): each for job_type, each in self._answered.items()},
            ),
        ]


class CountersLike(Protocol):
    """What has become of deliveries that were not run."""

    @property
    def skipped(self) -> int: ...
    @property
    def returned(self) -> int: ...
    @property
    def put_off(self) -> int: ...
    @property
    def buried(self) -> int: ...


class ShareLike(Protocol):
    """What a worker consumes."""

    @property
    def kind(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def reserve(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """How a worker stands at this moment."""

    worker_id: str
    shares: Sequence[ShareLike]
    consumers: Sequence[LaneConsumer]
    counters: CountersLike

    def shown(self) -> Iterable[tuple[Metric, Samples]]:
        """For `Metrics.show`."""
        each = list(zip(self.shares, self.consumers, strict=True))
        counters = self.counters
        asking = [uses.running for share, uses in each if share.kind == LLM]
        return [
            (names.SLOTS, {(share.kind,): float(share.slots) for share in self.shares}),
            (names.SLOTS_RESERVED, {(share.kind,): float(share.reserve) for share in self.shares}),
            (names.SLOTS_USED, {(share.kind,): float(uses.running) for share, uses in each}),
            (names.LLM_CONCURRENCY, {(self.worker_id,): float(sum(asking))} if asking else {}),
            (
                names.CONSUMING,
                {
                    (share.kind, queue): float(state != "away")
                    for share, consumer in each
                    for queue, state in consumer.states.items()
                },
            ),
            (
                names.NOT_RUN,
                {
                    ("skipped",): float(counters.skipped),
                    ("returned",): float(counters.returned),
                    ("put_off",): float(counters.put_off),
                    ("buried",): float(counters.buried),
                },
            ),
        ]
