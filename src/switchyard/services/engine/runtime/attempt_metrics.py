"""Metrics of a worker's attempts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.jobs.retry import Died, Succeeded
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.histogram import Histogram
from switchyard.services.engine.monitoring.metric_names import (
    OTHER,
    Distributions,
    Metric,
    Samples,
)
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.runtime.attempt_endings import (
    OUTCOMES,
    SUCCEEDED,
    Ending,
    outcome_of,
)

MAX_COLLECTED: Final = 500
"""Starts or ends that are collected before they are counted; a scrape counts them at once."""


class AttemptMetrics:
    """Counts the attempts of one process, in its event loop."""

    def __init__(self, metrics: Metrics, registry: Registry, kinds: Iterable[str]) -> None:
        """`kinds` are the kinds of worker in this process."""
        self._worker_by_type = {each.name: each.worker for each in registry}
        self._waits: defaultdict[tuple[str, ...], Histogram]
        self._waits = defaultdict(names.WAIT.distribution)
        """By worker and lane."""
        self._durations: defaultdict[tuple[str, ...], Histogram]
        self._durations = defaultdict(names.DURATION.distribution)
        """By worker and type."""
        self._attempts: defaultdict[tuple[str, ...], Histogram]
        self._attempts = defaultdict(names.ATTEMPTS_USED.distribution)
        """By worker and type."""
        self._answer_latencies: defaultdict[tuple[str, ...], Histogram]
        self._answer_latencies = defaultdict(names.LLM_LATENCY.distribution)
        """By type."""
        self._ended: Counter[tuple[str, ...]] = Counter()
        """Ended attempts by worker, lane, type and outcome."""
        self._starts: list[tuple[str, str, datetime, float]] = []
        """Collected starts: type, lane, when the job entered it, and when it was started."""
        self._ends: defaultdict[tuple[str, str, str, int | None], list[float]] = defaultdict(list)
        """Collected durations in seconds, by type, lane, outcome, and the attempts used if the job
        has ended."""
        own_kinds = set(kinds)
        own_types = [each for each in registry if each.worker in own_kinds]
        # Zeros are exposed, as Prometheus sees no increase in a series that begins at 1.
        self._deaths: Counter[tuple[str, ...]] = Counter(
            {
                (each.worker, lane, each.name, Reason.CRASHED.value): 0
                for each in own_types
                for lane in each.lanes
            }
        )
        """Counts by worker, lane, type and reason."""
        self._zero_requests: dict[tuple[str, ...], int] = {
            (outcome, each.name): 0
            for each in own_types
            if each.worker == LLM_WORKER
            for outcome in OUTCOMES
        }
        metrics.add_source(self.samples)
        metrics.add_histogram_source(self.histograms)

    def add_start(self, message: JobMessage, lane: str, started_at: float) -> None:
        """Count a job whose handler is about to run; `started_at` is the ledger's time."""
        metadata = message.metadata
        if metadata.attempts == 0:
            entered = metadata.queued_at or metadata.created_at
            self._starts.append((message.job_type, lane, entered, started_at))
            if len(self._starts) >= MAX_COLLECTED:
                self._count_starts()

    def add_end(self, message: JobMessage, lane: str, seconds: float, ending: Ending) -> None:
        """Count an attempt that took `seconds`, and whose end is recorded."""
        job_type = message.job_type
        if job_type not in self._worker_by_type:
            job_type = OTHER  # message types from outside are unbounded
        if isinstance(ending, Succeeded):
            outcome, attempts_used = SUCCEEDED, message.metadata.attempts + 1
        elif isinstance(ending, Died):
            outcome, attempts_used = outcome_of(ending), ending.attempts
            worker = self._worker_by_type.get(job_type, OTHER)
            self._deaths[worker, lane, job_type, str(ending.reason)] += 1
        else:
            outcome, attempts_used = outcome_of(ending), None
        durations = self._ends[job_type, lane, outcome, attempts_used]
        durations.append(seconds)
        if len(durations) >= MAX_COLLECTED:
            self._count_ends()

    def _count_starts(self) -> None:
        waits: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for job_type, lane, entered, started in self._starts:
            worker = self._worker_by_type.get(job_type, OTHER)
            waits[worker, lane].append(max(0.0, started - entered.timestamp()))
        for labels, waited in waits.items():
            self._waits[labels].add_each(waited)
        self._starts.clear()

    def _count_ends(self) -> None:
        for (job_type, lane, outcome, attempts_used), durations in self._ends.items():
            worker = self._worker_by_type.get(job_type, OTHER)
            self._ended[worker, lane, job_type, outcome] += len(durations)
            self._durations[worker, job_type].add_each(durations)
            if worker == LLM_WORKER and outcome == SUCCEEDED:
                # Only answers: an attempt sent back for want of a server is no slow answer.
                self._answer_latencies[job_type,].add_each(durations)
            if attempts_used is not None:
                self._attempts[worker, job_type].add(attempts_used, times=len(durations))
        self._ends.clear()

    def samples(self) -> Iterable[tuple[Metric, Samples]]:
        """Return the metrics, as a source of `Metrics.add_source`."""
        self._count_ends()
        processed = Counter(self._zero_requests)
        for (worker, _lane, job_type, outcome), number in self._ended.items():
            if worker == LLM_WORKER:
                processed[outcome, job_type] += number
        return [
            (names.ATTEMPTS, self._ended),
            (names.DEATHS, self._deaths),
            (names.LLM_PROCESSED, processed),
        ]

    def histograms(self) -> Iterable[tuple[Metric, Distributions]]:
        """Return the histograms, as a source of `Metrics.add_histogram_source`."""
        self._count_starts()
        self._count_ends()
        return [
            (names.DURATION, self._durations),
            (names.WAIT, self._waits),
            (names.ATTEMPTS_USED, self._attempts),
            (names.LLM_LATENCY, self._answer_latencies),
        ]


class CountersLike(Protocol):
    """The counters that WorkerGauges exposes: deliveries that were not run."""

    @property
    def skipped(self) -> int: ...
    @property
    def returned(self) -> int: ...
    @property
    def put_off(self) -> int: ...
    @property
    def malformed(self) -> int: ...


class PlanLike(Protocol):
    """The part of a WorkerPlan that WorkerGauges exposes."""

    @property
    def kind(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def reserve(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """Exposes a worker's present state as gauges."""

    worker_id: str
    plans: Sequence[PlanLike]
    consumers: Sequence[LaneConsumer]
    counters: CountersLike

    def metric_samples(self) -> Iterable[tuple[Metric, Samples]]:
        """Return the metrics, as a source of `Metrics.add_source`."""
        plans_and_consumers = list(zip(self.plans, self.consumers, strict=True))
        counters = self.counters
        llm_running = [
            consumer.running for plan, consumer in plans_and_consumers if plan.kind == LLM_WORKER
        ]
        return [
            (names.SLOTS, {(plan.kind,): float(plan.slots) for plan in self.plans}),
            (names.SLOTS_RESERVED, {(plan.kind,): float(plan.reserve) for plan in self.plans}),
            (
                names.SLOTS_USED,
                {(plan.kind,): float(consumer.running) for plan, consumer in plans_and_consumers},
            ),
            (
                names.LLM_CONCURRENCY,
                {(self.worker_id,): float(sum(llm_running))} if llm_running else {},
            ),
            (
                names.CONSUMING,
                {
                    (plan.kind, queue): float(state != "away")
                    for plan, consumer in plans_and_consumers
                    for queue, state in consumer.states.items()
                },
            ),
            (
                names.NOT_RUN,
                {
                    ("skipped",): float(counters.skipped),
                    ("returned",): float(counters.returned),
                    ("put_off",): float(counters.put_off),
                    ("malformed",): float(counters.malformed),
                },
            ),
        ]
