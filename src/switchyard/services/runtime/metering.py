"""What a worker's metrics say of its jobs. Counting one costs about two microseconds: what can be
worked out when somebody scrapes is left until then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.dead.certificate import Reason
from switchyard.services.jobs.registry import Registry
from switchyard.services.jobs.retry import Died, Succeeded
from switchyard.services.ledger.sql.clock import Clock
from switchyard.services.monitoring import metric_names as names
from switchyard.services.monitoring.distribution import Distribution
from switchyard.services.monitoring.metric_names import LLM, OTHER, Distributions, Metric, Samples
from switchyard.services.monitoring.metrics import Metrics
from switchyard.services.runtime.endings import SUCCEEDED, Ending, outcome_of
from switchyard.services.runtime.running import RunningJob


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

    def started(self, job: RunningJob) -> None:
        """Its handler is about to run."""
        metadata = job.message.metadata
        if metadata.attempts == 0:
            key = (self._worker_of.get(job.message.job_type, OTHER), job.delivery.lane)
            waits = self._waits.get(key)
            if waits is None:
                waits = self._waits[key] = names.WAIT.distribution()
            entered = metadata.queued_at or metadata.created_at
            waits.add(max(0.0, self._clock.time() - entered.timestamp()))

    def ended(self, job: RunningJob, ending: Ending) -> None:
        """It has ended so, and the delivery is acknowledged."""
        lane, outcome = job.delivery.lane, outcome_of(ending)
        job_type = job.message.job_type
        tally = self._tallies.get((job_type, lane, outcome))
        if tally is None:
            tally = self._new_tally(job_type, lane, outcome)
        tally.ended += 1
        seconds = max(0.0, self._clock.time() - job.started_at)
        tally.spent.seconds.add(seconds)
        if tally.answered is not None:
            tally.answered.add(seconds)
        if isinstance(ending, Succeeded):
            tally.spent.attempts.add(job.message.metadata.attempts + 1)
        elif isinstance(ending, Died):
            tally.spent.attempts.add(ending.attempts)
            worker, job_type = self._labels(job_type)
            death = (worker, lane, job_type, str(ending.reason))
            self._deaths[death] = self._deaths.get(death, 0) + 1

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
