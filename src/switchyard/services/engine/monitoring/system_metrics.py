"""Collect the metrics of the system as a whole: queues, ledger, workers. API and scheduler expose
them.

Broker and ledger are read at a scrape, but at most every METRICS_TTL seconds. All processes expose
the same values; dashboards and rules take the `max` over instances.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import structlog

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import DEAD_QUEUE, LANES, queue_name
from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.lane_report import (
    LanesReport,
    QueueReport,
    make_lane_report,
)
from switchyard.services.engine.monitoring.metric_names import OTHER, Metric, Samples
from switchyard.services.engine.monitoring.metrics import Metrics
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.monitoring.schedule_status import schedule_samples
from switchyard.services.engine.monitoring.worker_status import is_current, status_of
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.limits import LimitReport
from switchyard.services.engine.records.results import Gauges, WorkerRecord
from switchyard.services.engine.wings import load_contributions

METRICS_TTL = 4.0
"""Seconds for which collected metrics are exposed again."""
MEASURE_INTERVAL = 60.0
"""Seconds for which a measurement of the storage is reused."""
MEASURE_TIMEOUT = 5.0
DEAD_LANE = "dead"
"""The lane label of `jobs.dead`."""

MetricSamples = list[tuple[Metric, Samples]]


class SystemMetrics:
    """Reads broker and ledger, and exposes the result as metrics."""

    def __init__(self, settings: Settings, registry: Registry, ledger: Ledger) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._lanes = {lane.name for lane in LANES}
        self._refreshed_at = float("-inf")
        self._refresh_lock = asyncio.Lock()
        self._log = structlog.get_logger("metrics")
        self._broker_samples: MetricSamples = []
        self._ledger_samples: MetricSamples = []
        self._storage_samples: MetricSamples = []
        self._measured_at = float("-inf")

    def install(self, metrics: Metrics) -> None:
        """Expose them in `metrics` from now on."""
        metrics.before_scrape(self.refresh)
        metrics.add_source(self.metric_samples)

    def metric_samples(self) -> Iterable[tuple[Metric, Samples]]:
        """Return the samples of the last refresh."""
        return [*self._broker_samples, *self._ledger_samples, *self._storage_samples]

    async def refresh(self) -> None:
        """Read everything again, unless the last values are younger than METRICS_TTL. Of a part
        that is away, only that is exposed."""
        async with self._refresh_lock:
            if time.monotonic() - self._refreshed_at < METRICS_TTL:
                return
            up: dict[tuple[str, ...], float] = {}
            self._broker_samples = await self._read_broker(up)
            self._ledger_samples = await self._read_ledger(up)
            await self._measure_storage()
            self._broker_samples.append((names.UP, up))
            self._refreshed_at = time.monotonic()

    async def _measure_storage(self) -> None:
        """Measure the storage, but not at every scrape, as every file is listed. If it is slow or
        away, the last measurement is kept."""
        quota, now = self._settings.storage_quota, time.monotonic()
        if quota is None or now - self._measured_at < MEASURE_INTERVAL:
            return
        self._measured_at = now
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT):
                used = await Storage(self._settings.files_url).size_async()
        except (TimeoutError, StorageUnavailable) as error:
            self._log.warning(
                "storage size not measured",
                error=str(error) or type(error).__name__,
            )
            return
        self._storage_samples = [
            (names.STORAGE_USED, {(): float(used)}),
            (names.STORAGE_QUOTA, {(): float(quota)}),
        ]

    async def _read_broker(self, up: dict[tuple[str, ...], float]) -> MetricSamples:
        if self._settings.amqp_url is None:
            return []
        try:
            report = await make_lane_report(
                self._settings, self._registry, None, clock=self._ledger.clock.time
            )
        except BrokerUnavailable as error:
            self._log.warning("broker unreachable", error=str(error))
            up["broker",] = 0
            return []
        up["broker",] = 1
        up["management",] = report.management_error is None
        return _queue_samples(report)

    async def _read_ledger(self, up: dict[tuple[str, ...], float]) -> MetricSamples:
        try:
            gauges = await self._ledger.gauges.gauges()
            workers = await self._ledger.workers.list_workers()
            limit_reports = await self._ledger.limits.limit_reports()
            schedules = await self._ledger.schedules.schedules()
            waiting = await self._ledger.schedules.waiting_firings()
            firings = await self._ledger.schedules.last_firings(settled=True)
            wing_samples = [
                each
                for collect in load_contributions("metrics")
                for each in await collect(self._settings, self._ledger)
            ]
        except LedgerError as error:
            self._log.warning("ledger unreachable", error=str(error))
            up["ledger",] = 0
            return []
        up["ledger",] = 1
        takeover = self._settings.takeover_after
        now = self._ledger.clock.time()
        kinds = {each.worker for each in self._registry.publishable_types}
        return [
            *self._job_samples(gauges, now),
            (names.WORKERS, _worker_samples(workers, kinds, takeover, now)),
            *_limit_samples(self._registry, limit_reports),
            *schedule_samples(schedules, waiting, firings, now),
            *wing_samples,
        ]

    def _job_samples(self, gauges: Gauges, now: float) -> MetricSamples:
        queues = {route.queue for route in self._registry.routes}
        oldest: dict[tuple[str, ...], float] = {
            (lane, queue_name(lane, worker)): max(0.0, now - at)
            for (lane, worker), at in gauges.oldest.items()
            if queue_name(lane, worker) in queues
        }
        per_lane: dict[tuple[str, ...], float] = dict.fromkeys(
            ((lane,) for lane in sorted(self._lanes)), 0.0
        )
        for (lane, *_), age in oldest.items():
            per_lane[lane,] = max(per_lane.get((lane,), 0.0), age)
        pending = gauges.oldest_pending
        return [
            (names.OLDEST, dict.fromkeys(_queue_labels(self._registry), 0.0) | oldest),
            (names.LANE_OLDEST, per_lane),
            (names.OPEN_JOBS, self._by_lane(gauges.open_jobs)),
            (names.OUTBOX_OLDEST, {(): 0.0 if pending is None else max(0.0, now - pending)}),
            (names.DEAD_LETTERS, {**self._zero_letters(), **self._by_lane(gauges.dead)}),
            (names.BULK, {key: float(number) for key, number in gauges.bulk.items()}),
            (
                names.BULK_IDLE,
                {(kind,): max(0.0, now - at) for kind, at in gauges.bulk_progress.items()},
            ),
        ]

    def _zero_letters(self) -> dict[tuple[str, ...], float]:
        """Return zero letters for every lane and reason: Prometheus sees no increase in a series
        that begins at 1."""
        return {(lane, reason.value): 0.0 for lane in sorted(self._lanes) for reason in Reason}

    def _by_lane(self, numbers: Mapping[tuple[str, str], int]) -> Samples:
        """Return the numbers with unknown lanes replaced by `other`: messages from outside may name
        any lane."""
        counts: Counter[tuple[str, ...]] = Counter()
        for (lane, second_label), number in numbers.items():
            counts[lane if lane in self._lanes else OTHER, second_label] += number
        return _floats(counts)


def _queue_labels(registry: Registry) -> list[tuple[str, ...]]:
    return [(route.lane, route.queue) for route in registry.routes]


def _queue_samples(report: LanesReport) -> MetricSamples:
    queues: list[tuple[str, QueueReport]] = []
    for lane in report.lanes:
        label = DEAD_LANE if lane.queues[0].name == DEAD_QUEUE else lane.name
        queues += [(label, queue) for queue in lane.queues if queue.exists]
    depth: Counter[tuple[str, ...]] = Counter()
    for label, queue in queues:
        depth[label,] += queue.ready
    llm_queues = [
        (label, queue) for label, queue in queues if queue.name.endswith(f".{LLM_WORKER}")
    ]
    return [
        (names.LLM_DEPTH, {(lane,): float(queue.ready) for lane, queue in llm_queues}),
        (names.READY, {(lane, queue.name): float(queue.ready) for lane, queue in queues}),
        (names.CONSUMERS, {(lane, queue.name): float(queue.consumers) for lane, queue in queues}),
        (
            names.UNACKED,
            {
                (lane, queue.name): float(queue.unacked)
                for lane, queue in queues
                if queue.unacked is not None
            },
        ),
        (
            names.LIMIT,
            {
                (lane, queue.name): float(queue.limit)
                for lane, queue in queues
                if queue.limit is not None
            },
        ),
        (names.LANE_DEPTH, _floats(depth)),
    ]


def _worker_samples(
    workers: Iterable[WorkerRecord], kinds: set[str], takeover_after: float, now: float
) -> Samples:
    counts: dict[tuple[str, ...], float] = {
        (kind, status): 0.0 for kind in sorted(kinds) for status in ("alive", "silent")
    }
    for worker in workers:
        if not is_current(worker, now):
            continue
        status = status_of(worker, takeover_after=takeover_after, now=now)
        for kind in worker.kinds:
            key = (kind if kind in kinds else OTHER, status)
            counts[key] = counts.get(key, 0.0) + 1
    return counts


def _limit_samples(registry: Registry, reports: Iterable[LimitReport]) -> MetricSamples:
    """Return the metrics of named limits, by name alone: the number of keys is unbounded."""
    in_use: Counter[tuple[str, ...]] = Counter()
    waiting: Counter[tuple[str, ...]] = Counter()
    for name in {limit.name for job_type in registry for limit in job_type.limits}:
        in_use[name,] = waiting[name,] = 0
    for each in reports:
        label = (each.name if (each.name,) in in_use else OTHER,)
        in_use[label] += each.in_use
        waiting[label] += each.waiting
    return [(names.LIMIT_IN_USE, _floats(in_use)), (names.LIMIT_WAITING, _floats(waiting))]


def _floats(numbers: Mapping[tuple[str, ...], int]) -> Samples:
    return {label: float(number) for label, number in numbers.items()}
