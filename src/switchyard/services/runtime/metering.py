"""What a worker's metrics say of its jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

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
from switchyard.services.runtime.endings import OUTCOMES, SUCCEEDED, Ending, outcome_of


@dataclass(slots=True)
class _Tally:
    """Attempts of one type, lane and outcome: all that one of them is counted in, found at once.
    Those of a type share their distributions, whatever the lane and the outcome."""

    seconds: Distribution
    attempts: Distribution
    answered: Distribution | None
    """Of a model's answers of this type; None for all else. An attempt that went back for want of a
    server has none, and would pass for a slow answer."""
    ended: int = 0


class Meter:
    """Counts the attempts of one process, in its event loop."""

    def __init__(
        self, metrics: Metrics, registry: Registry, clock: Clock, kinds: Iterable[str]
    ) -> None:
        """`kinds` are those that the process works."""
        self._clock = clock
        self._worker_of = {each.name: each.worker for each in registry}
        self._waits: defaultdict[tuple[str, ...], Distribution]
        self._waits = defaultdict(names.WAIT.distribution)
        """By worker and lane."""
        self._seconds: defaultdict[tuple[str, ...], Distribution]
        self._seconds = defaultdict(names.DURATION.distribution)
        """By worker and type."""
        self._attempts: defaultdict[tuple[str, ...], Distribution]
        self._attempts = defaultdict(names.ATTEMPTS_USED.distribution)
        """By worker and type."""
        self._answered: defaultdict[tuple[str, ...], Distribution]
        self._answered = defaultdict(names.LLM_LATENCY.distribution)
        """By type."""
        self._tallies: dict[tuple[str, str, str], _Tally] = {}
        """By type, lane and outcome."""
        worked = [each for each in registry if each.worker in set(kinds)]
        # Shown as none: Prometheus sees a first one only where it has seen that.
        self._deaths: dict[tuple[str, ...], int] = {
            (each.worker, lane, each.name, Reason.CRASHED.value): 0
            for each in worked
            for lane in each.lanes
        }
        self._none_asked: dict[tuple[str, ...], float] = {
            (outcome, each.name): 0.0
            for each in worked
            if each.worker == LLM
            for outcome in OUTCOMES
        }
        metrics.show(self.counted)
        metrics.show_histograms(self.distributed)

    def started(self, message: JobMessage, lane: str) -> None:
        """The handler of a job is about to run."""
        metadata = message.metadata
        if metadata.attempts == 0:
            entered = metadata.queued_at or metadata.created_at
            waited = max(0.0, self._clock.time() - entered.timestamp())
            self._waits[self._worker_of.get(message.job_type, OTHER), lane].add(waited)

    def ended(self, message: JobMessage, lane: str, started_at: float, ending: Ending) -> None:
        """Its attempt, begun then, has ended so, which the ledger has."""
        took = max(0.0, self._clock.time() - started_at)
        key = (message.job_type, lane, outcome_of(ending))
        tally = self._tallies.get(key) or self._new_tally(*key)
        tally.ended += 1
        tally.seconds.add(took)
        if tally.answered is not None:
            tally.answered.add(took)
        if isinstance(ending, Succeeded):
            tally.attempts.add(message.metadata.attempts + 1)
        elif isinstance(ending, Died):
            tally.attempts.add(ending.attempts)
            worker, job_type = self._labels(message.job_type)
            death = (worker, lane, job_type, str(ending.reason))
            self._deaths[death] = self._deaths.get(death, 0) + 1

    def _new_tally(self, job_type: str, lane: str, outcome: str) -> _Tally:
        """The one of `other` for each type that is not registered: there may be any number."""
        worker, job_type = self._labels(job_type)
        is_answer = worker == LLM and outcome == SUCCEEDED
        tally = _Tally(
            self._seconds[worker, job_type],
            self._attempts[worker, job_type],
            self._answered[job_type,] if is_answer else None,
        )
        return self._tallies.setdefault((job_type, lane, outcome), tally)

    def _labels(self, job_type: str) -> tuple[str, str]:
        worker = self._worker_of.get(job_type)
        return (OTHER, OTHER) if worker is None else (worker, job_type)

    def counted(self) -> Iterable[tuple[Metric, Samples]]:
        """For `Metrics.show`."""
        attempts: dict[tuple[str, ...], float] = {}
        asked = dict(self._none_asked)
        for (job_type, lane, outcome), tally in self._tallies.items():
            worker, _ = self._labels(job_type)
            attempts[worker, lane, job_type, outcome] = float(tally.ended)
            if worker == LLM:
                asked[outcome, job_type] += tally.ended
        return [
            (names.ATTEMPTS, attempts),
            (names.DEATHS, {key: float(number) for key, number in self._deaths.items()}),
            (names.LLM_PROCESSED, asked),
        ]

    def distributed(self) -> Iterable[tuple[Metric, Distributions]]:
        """For `Metrics.show_histograms`."""
        return [
            (names.DURATION, self._seconds),
            (names.WAIT, self._waits),
            (names.ATTEMPTS_USED, self._attempts),
            (names.LLM_LATENCY, self._answered),
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
