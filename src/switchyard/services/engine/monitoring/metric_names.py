"""Every metric of the system, by name.

docs/metrics.md lists the same names, and a test compares. Labels are bounded: lanes, kinds of
worker, queues, registered job types, and closed sets of outcomes. Never an id or an error's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from switchyard.services.engine.monitoring.histogram import Histogram

OTHER = "other"
"""The label of values outside of a closed set, such as an undeclared lane or job type."""

Samples = Mapping[tuple[str, ...], float]
"""Values by the labels, in the metric's order."""
Distributions = Mapping[tuple[str, ...], Histogram]
"""Histograms by the values of their labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. The name is the one in queries of a dashboard; a histogram's without `_bucket`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def distribution(self) -> Histogram:
        """Return an empty histogram with the metric's buckets."""
        return Histogram(self.buckets)

    def family(self, samples: Samples) -> Family:
        """Return these values of a counter or gauge for the exposition."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self.help, labels=self.labels)
        for labels, value in samples.items():
            family.add_metric(labels, value)
        return family

    def histogram(self, distributions: Distributions) -> Family:
        """Return these values of a histogram for the exposition."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, each in distributions.items():
            family.add_metric(labels, each.buckets(), each.sum)
        return family


_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LONG = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0)
_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14400.0)

# --- jobs: every worker ---------------------------------------------------------------------------
ATTEMPTS = Metric(
    "switchyard_job_attempts_total",
    "counter",
    "Ended attempts by `outcome`: succeeded, retried, snoozed, dead or cancelled.",
    ("worker", "lane", "job_type", "outcome"),
)
DEATHS = Metric(
    "switchyard_job_deaths_total",
    "counter",
    "Jobs of this worker that became dead letters, by `reason`: exhausted, permanent, "
    "expired or crashed.",
    ("worker", "lane", "job_type", "reason"),
)
DURATION = Metric(
    "switchyard_job_duration_seconds",
    "histogram",
    "From the claim of a job to the end of its attempt, including the acknowledgement.",
    ("worker", "job_type"),
    _LONG,
)
WAIT = Metric(
    "switchyard_job_wait_seconds",
    "histogram",
    "From a job's entry into its lane to the start of its first attempt.",
    ("worker", "lane"),
    _WAIT,
)
ATTEMPTS_USED = Metric(
    "switchyard_job_attempts_used",
    "histogram",
    "Attempts that a job has used when it succeeds or dies, the last one included.",
    ("worker", "job_type"),
    (1, 2, 3, 5, 10, 20),
)
NOT_RUN = Metric(
    "switchyard_deliveries_not_run_total",
    "counter",
    "Deliveries that were not run; `why`: skipped (already ended, or an older copy), "
    "returned to the queue, put_off (no room in a named limit), or malformed (no job, or an "
    "invalid payload).",
    ("why",),
)
LOOP_BLOCKS = Metric(
    "switchyard_event_loop_blocks_total",
    "counter",
    "Times that one callback blocked the event loop of a process for over one second; `job_type` "
    "is what it ran, or other.",
    ("job_type",),
)
LOOP_BLOCKED_SECONDS = Metric(
    "switchyard_event_loop_blocked_seconds_total",
    "counter",
    "Seconds that these lasted.",
    ("job_type",),
)
LLM_PROCESSED = Metric(
    "llm_requests_processed_total",
    "counter",
    "Attempts at requests to language models, of the llm workers and in direct mode; `status` is "
    "the outcome of the attempt.",
    ("status", "request_type"),
)
LLM_LATENCY = Metric(
    "llm_request_latency_seconds",
    "histogram",
    "From the claim of an answered request to its answer, including the wait for a slot.",
    ("request_type",),
    _LONG,
)
LLM_HEDGES = Metric(
    "switchyard_llm_hedges_total",
    "counter",
    "Second requests for hot calls whose first token was late; `outcome`: won (it answered "
    "first), lost, or failed.",
    ("outcome",),
)
LLM_CONCURRENCY = Metric(
    "llm_worker_concurrency",
    "gauge",
    "Requests that this worker has in progress, those that wait for a slot included.",
    ("worker_id",),
)
SLOTS = Metric(
    "switchyard_slots",
    "gauge",
    "Maximum number of jobs that this worker runs at once.",
    ("worker",),
)
SLOTS_USED = Metric("switchyard_slots_used", "gauge", "Slots in use.", ("worker",))
SLOTS_RESERVED = Metric(
    "switchyard_slots_reserved",
    "gauge",
    "Slots that only the lane with the highest priority may use.",
    ("worker",),
)
CONSUMING = Metric(
    "switchyard_queue_consuming",
    "gauge",
    "1 if this worker has a consumer on the queue, else 0.",
    ("worker", "queue"),
)

# --- every process --------------------------------------------------------------------------------
PUBLISHES = Metric(
    "switchyard_publishes_total",
    "counter",
    "Jobs sent to the broker; `outcome`: accepted, full, unroutable, invalid (too large, or not to "
    "be put into AMQP), forbidden, blocked, away or refused.",
    ("lane", "outcome"),
)
LEDGER_SECONDS = Metric(
    "switchyard_ledger_seconds",
    "histogram",
    "Duration of ledger transactions; `work` is read or write.",
    ("work",),
    _SHORT,
)
LEDGER_FAILURES = Metric(
    "switchyard_ledger_failures_total",
    "counter",
    "Ledger transactions that failed; `work` is read or write.",
    ("work",),
)

# --- the scheduler --------------------------------------------------------------------------------
SCHEDULER_ACTIVE = Metric(
    "switchyard_scheduler_active",
    "gauge",
    "1 for the active scheduler (it holds the lease), 0 for the others.",
)
SCHEDULER_PUBLISHED = Metric(
    "switchyard_scheduler_published_total",
    "counter",
    "Jobs that this scheduler has published; `what`: scheduled (due), outbox (not confirmed "
    "before), resumed (after a pause), lost (of silent workers) or refused.",
    ("what",),
)
SCHEDULER_PRUNED = Metric(
    "switchyard_scheduler_pruned_rows_total",
    "counter",
    "Rows of the ledger that this scheduler has removed for their age, by `table`.",
    ("table",),
)

# --- the system as a whole: API and scheduler -----------------------------------------------------
SCHEDULE_LATE = Metric(
    "switchyard_schedule_late_seconds",
    "gauge",
    "How long ago the schedule should have fired; 0 if it is not due. The first 100 "
    "schedules have their names; `other` is the latest of the rest.",
    ("schedule",),
)
SCHEDULE_FIRED = Metric(
    "switchyard_schedule_last_fired_seconds",
    "gauge",
    "Time since the schedule fired, if its last due time was fired. The first 100 schedules "
    "have their names; `other` is the longest of the rest.",
    ("schedule",),
)
SCHEDULES_REFUSED = Metric(
    "switchyard_schedules_refused",
    "gauge",
    "Schedules whose last job was refused until its grace had passed, and then given up.",
)
UP = Metric(
    "switchyard_part_up",
    "gauge",
    "1 if the part answers, else 0: broker, management, ledger.",
    ("part",),
)
READY = Metric(
    "switchyard_queue_ready",
    "gauge",
    "Messages in the queue that wait for a worker (ready).",
    ("lane", "queue"),
)
UNACKED = Metric(
    "switchyard_queue_unacked",
    "gauge",
    "Messages of the queue that workers hold (unacknowledged); only if the management API answers.",
    ("lane", "queue"),
)
CONSUMERS = Metric(
    "switchyard_queue_consumers", "gauge", "Consumers of the queue.", ("lane", "queue")
)
LIMIT = Metric(
    "switchyard_queue_limit",
    "gauge",
    "Waiting jobs at which the queue is full: further ones are refused.",
    ("lane", "queue"),
)
OLDEST = Metric(
    "switchyard_queue_oldest_seconds",
    "gauge",
    "Age of the job that has waited longest in the queue, according to the ledger.",
    ("lane", "queue"),
)
LANE_DEPTH = Metric(
    "switchyard_lane_depth", "gauge", "Ready messages in all queues of the lane.", ("lane",)
)
LANE_OLDEST = Metric(
    "switchyard_lane_oldest_seconds",
    "gauge",
    "Age of the job that has waited longest in a queue of the lane.",
    ("lane",),
)
OPEN_JOBS = Metric(
    "switchyard_jobs_open", "gauge", "Jobs in the ledger that have not ended.", ("lane", "state")
)
OUTBOX_OLDEST = Metric(
    "switchyard_outbox_oldest_seconds",
    "gauge",
    "Age of the oldest job that is recorded but not confirmed by the broker; 0 if there is none.",
)
DEAD_LETTERS = Metric(
    "switchyard_dead_letters",
    "gauge",
    "Dead letters that wait for a redrive, by cause.",
    ("lane", "reason"),
)
WORKERS = Metric(
    "switchyard_workers",
    "gauge",
    "Workers by kind and `status`: alive or silent (no heartbeat).",
    ("worker", "status"),
)
LIMIT_IN_USE = Metric(
    "switchyard_limit_in_use",
    "gauge",
    "Running jobs that count towards a named limit, all keys together.",
    ("limit",),
)
LIMIT_WAITING = Metric(
    "switchyard_limit_waiting",
    "gauge",
    "Jobs that wait for room in a named limit, all keys together.",
    ("limit",),
)
LLM_DEPTH = Metric(
    "llm_queue_depth", "gauge", "Requests to language models that wait in the lane.", ("lane",)
)
LLM_SERVER_LIMIT = Metric(
    "switchyard_llm_server_limit",
    "gauge",
    "Current maximum of concurrent calls to the server, of all processes together.",
    ("server",),
)
LLM_SERVER_CALLS = Metric(
    "switchyard_llm_server_calls",
    "gauge",
    "Calls to the server in progress, of all processes together.",
    ("server",),
)
LLM_SERVER_PAUSED = Metric(
    "switchyard_llm_server_paused_seconds",
    "gauge",
    "Remaining pause of the server; 0 if it is not paused.",
    ("server",),
)
LLM_TOKENS = Metric(
    "switchyard_llm_tokens_today",
    "gauge",
    "Tokens used since 00:00 UTC; `kind`: input, cached (part of the input) or output.",
    ("server", "kind"),
)
LLM_COST = Metric(
    "switchyard_llm_cost_today",
    "gauge",
    "Cost of today's calls (UTC), in the currency of JOBS_LLM_PRICES.",
    ("server",),
)
LLM_UNPRICED = Metric(
    "switchyard_llm_unpriced_calls_today",
    "gauge",
    "Today's calls whose cost is unknown, because their model has no price.",
    ("server",),
)
LLM_SAVED = Metric(
    "switchyard_llm_saved_today",
    "gauge",
    "Cost that stored answers have saved today.",
)
LLM_BUDGET_LEFT = Metric(
    "switchyard_llm_budget_left",
    "gauge",
    "Remaining budget of today; only if JOBS_LLM_BUDGET_PER_DAY is set.",
)
LLM_BUDGETS_SHORT = Metric(
    "switchyard_llm_budgets_short",
    "gauge",
    "Budgets (today's and of backfills) that were too low for the last call: jobs wait.",
)
LLM_BATCHED = Metric(
    "switchyard_llm_batched_questions",
    "gauge",
    "Requests for Batch APIs; `state`: collected, sent, or, until their jobs have run, "
    "answered or live.",
    ("server", "state"),
)
BULK = Metric(
    "switchyard_bulk_operations",
    "gauge",
    "Unfinished backfills and redrives, by `kind` and state.",
    ("kind", "state"),
)
BULK_IDLE = Metric(
    "switchyard_bulk_idle_seconds",
    "gauge",
    "Longest time without progress of a running operation of this kind.",
    ("kind",),
)
STORAGE_USED = Metric(
    "switchyard_storage_bytes",
    "gauge",
    "Bytes in the file storage, measured at most once a minute; only if JOBS_STORAGE_QUOTA is set.",
)
STORAGE_QUOTA = Metric(
    "switchyard_storage_quota_bytes",
    "gauge",
    "JOBS_STORAGE_QUOTA: uploads are refused from this size on.",
)

ALL: Final = tuple(each for each in list(vars().values()) if isinstance(each, Metric))
