"""What a worker's metrics say of its jobs. Counting one costs a few microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from switchyard.broker.consume.consumer import LaneConsumer
from switchyard.broker.dead.certificate import Reason
from switchyard.services.jobs.registry import Registry
from switchyard.services.jobs.retry import Died, Succeeded
from switchyard.services.ledger.sql.clock import Clock
from switchyard.services.monitoring import metric_names as names
from switchyard.services.monitoring.metric_names import LLM, OTHER, Metric, Samples
from switchyard.services.monitoring.metrics import Metrics
from switchyard.services.runtime.endings import Ending, outcome_of
from switchyard.services.runtime.running import RunningJob


class Meter:
    """Counts the attempts of one process."""

    def __init__(
        self, metrics: Metrics, registry: Registry, clock: Clock, kinds: Iterable[str] = ()
    ) -> None:
        """`kinds` are those that the process works."""
        self._clock = clock
        self._worker_of = {each.name: each.worker for each in registry}
        self._attempts = metrics.counter(names.ATTEMPTS)
        self._deaths = metrics.counter(names.DEATHS)
        self._duration = metrics.histogram(names.DURATION)
        self._wait = metrics.histogram(names.WAIT)
        self._used = metrics.histogram(names.ATTEMPTS_USED)
        self._llm_processed = metrics.counter(names.LLM_PROCESSED)
        self._llm_latency = metrics.histogram(names.LLM_LATENCY)
        worked = set(kinds)
        for each in (each for each in registry if each.worker in worked):
            for lane in each.lanes:
                # Shown as none: Prometheus sees a first crash only where it has seen that.
                self._deaths.labels(each.worker, lane, each.name, Reason.CRASHED.value)

    def started(self, job: RunningJob) -> None:
        """Its handler is about to run."""
        metadata = job.message.metadata
        if metadata.attempts == 0:
            worker, _ = self._labels(job)
            entered = metadata.queued_at or metadata.created_at
            waited = max(0.0, self._clock.time() - entered.timestamp())
            self._wait.labels(worker, job.delivery.lane).observe(waited)

    def ended(self, job: RunningJob, ending: Ending) -> None:
        """It has ended so, and the delivery is acknowledged."""
        worker, job_type = self._labels(job)
        lane = job.delivery.lane
        seconds = max(0.0, self._clock.time() - job.started_at)
        self._attempts.labels(worker, lane, job_type, outcome_of(ending)).inc()
        self._duration.labels(worker, job_type).observe(seconds)
        if worker == LLM:
            self._llm_processed.labels(outcome_of(ending), job_type).inc()
            self._llm_latency.labels(job_type).observe(seconds)
        if isinstance(ending, Died):
            self._deaths.labels(worker, lane, job_type, str(ending.reason)).inc()
            self._used.labels(worker, job_type).observe(ending.attempts)
        elif isinstance(ending, Succeeded):
            self._used.labels(worker, job_type).observe(job.message.metadata.attempts + 1)

    def _labels(self, job: RunningJob) -> tuple[str, str]:
        job_type = job.message.job_type
        worker = self._worker_of.get(job_type)
        return (OTHER, OTHER) if worker is None else (worker, job_type)


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
