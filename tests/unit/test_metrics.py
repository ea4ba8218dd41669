"""Metrics: their names and docs/metrics.md, and their text, which Prometheus' parser reads."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from switchyard.broker.message import JobMessage
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.metric_names import ALL
from switchyard.services.engine.monitoring.metrics import Metrics, watch_ledger
from switchyard.services.engine.runtime.attempt_endings import CancelledWhileRunning
from switchyard.services.engine.runtime.attempt_metrics import MAX_COLLECTED, AttemptMetrics

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documented_metrics_are_the_existing_ones() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.+) \|$", metrics_page(), re.MULTILINE)
    documented = {name: (kind, labels, text) for name, kind, labels, text in rows}
    assert documented == {
        each.name: (each.kind, ", ".join(f"`{label}`" for label in each.labels), each.help)
        for each in ALL
    }


def metrics_page() -> str:
    return (DOCS / "metrics.md").read_text()


def test_names_follow_the_rules_of_prometheus() -> None:
    for each in ALL:
        assert re.fullmatch(r"(switchyard|llm)_[a-z_]+", each.name)
        assert (each.kind == "counter") == each.name.endswith("_total")
        assert (each.kind == "histogram") == bool(each.buckets)
        # The requirements prescribe this name and its label `worker_id`.
        if each is not names.LLM_CONCURRENCY:
            assert "id" not in {part for label in each.labels for part in label.split("_")}


async def test_counts_are_exposed() -> None:
    metrics = Metrics()
    record_ledger_call = watch_ledger(metrics)
    record_ledger_call("read", 0.003, True)
    record_ledger_call("write", 0.2, False)
    metrics.add_source(lambda: [(names.PUBLISHES, {("hot", "accepted"): 2.0})])
    samples = parse(await metrics.scrape())
    assert samples["switchyard_ledger_seconds_count", ("read",)] == 1
    assert samples["switchyard_ledger_failures_total", ("write",)] == 1
    assert samples["switchyard_ledger_failures_total", ("read",)] == 0
    assert samples["switchyard_publishes_total", ("hot", "accepted")] == 2


async def test_a_histogram_is_exposed_as_by_the_client_of_prometheus() -> None:
    values = (0.0, 0.001, 0.0011, 0.25, 10.0, 10.1, 5_000.0)
    registry = CollectorRegistry()
    client_histogram = Histogram(
        "x", "", ["work"], buckets=names.LEDGER_SECONDS.buckets, registry=registry
    )
    metrics = Metrics()
    record_ledger_call = watch_ledger(metrics)
    for value in values:
        client_histogram.labels("read").observe(value)
        record_ledger_call("read", value, True)
    expected = parse(generate_latest(registry))
    del expected["x_created", ("read",)]
    exposed = {
        (name.replace("switchyard_ledger_seconds", "x"), labels): value
        for (name, labels), value in parse(await metrics.scrape()).items()
        if name.startswith("switchyard_ledger_seconds_") and "read" in labels
    }
    assert exposed == expected
    assert len(exposed) == len(names.LEDGER_SECONDS.buckets) + 3  # +Inf, count and sum


def test_values_count_the_same_together_as_one_by_one() -> None:
    values = [5_000.0, 0.0, 0.25, 0.001, 10.0, 0.0011, 0.25, 10.1]
    together, one_by_one = names.LEDGER_SECONDS.distribution(), names.LEDGER_SECONDS.distribution()
    for batch in (values, [0.003], []):  # later batches are added to the first
        together.add_each(batch)
        for value in batch:
            one_by_one.add(value)
        assert together.buckets() == one_by_one.buckets()
        assert together.sum == pytest.approx(one_by_one.sum)


async def test_a_label_may_hold_any_text() -> None:
    metrics = Metrics()
    texts = ('a "quoted" one', "back\\slash", "two\nlines", "é")
    metrics.add_source(lambda: [(names.LLM_COST, {(text,): 1e-7 for text in texts})])
    metrics.add_source(lambda: [(names.OUTBOX_OLDEST, {(): float("inf")})])
    samples = parse(await metrics.scrape())
    exposed = {labels[0]: value for (name, labels), value in samples.items() if "cost" in name}
    assert exposed == dict.fromkeys(texts, 1e-7)
    assert samples[names.OUTBOX_OLDEST.name, ()] == float("inf")


async def test_unregistered_job_types_are_counted_together() -> None:
    metrics = Metrics()
    attempt_metrics = AttemptMetrics(metrics, Registry(), ())
    jobs = 2 * MAX_COLLECTED + 50  # more than are collected at a time
    for number in range(jobs):
        message = JobMessage(job_type=f"unheard_of_{number}", payload={})
        attempt_metrics.add_start(message, "hot", message.metadata.created_at.timestamp() + 2)
        attempt_metrics.add_end(message, "hot", 0.5, CancelledWhileRunning())
    samples = parse(await metrics.scrape())
    attempts = {key: each for key, each in samples.items() if key[0] == names.ATTEMPTS.name}
    assert list(attempts.values()) == [jobs]
    assert samples["switchyard_job_wait_seconds_count", ("hot", "other")] == jobs
    assert samples["switchyard_job_wait_seconds_sum", ("hot", "other")] == pytest.approx(2 * jobs)
    assert samples["switchyard_job_duration_seconds_count", ("other", "other")] == jobs
    assert samples["switchyard_job_duration_seconds_sum", ("other", "other")] == jobs / 2
    assert parse(await metrics.scrape()).items() >= attempts.items()  # none is counted twice


async def test_two_sources_of_one_metric_are_added() -> None:
    metrics = Metrics()
    for seconds in (0.003, 0.2):
        watch_ledger(metrics)("read", seconds, seconds < 0.1)
    text = await metrics.scrape()
    assert text.count(b"# TYPE switchyard_ledger_seconds ") == 1
    for _ in range(2):  # a scrape changes nothing
        samples = parse(await metrics.scrape())
        assert samples["switchyard_ledger_seconds_count", ("read",)] == 2
        assert samples["switchyard_ledger_seconds_sum", ("read",)] == 0.203
        assert samples["switchyard_ledger_failures_total", ("read",)] == 1


async def test_a_refresh_that_fails_or_hangs_leaves_the_other_metrics(monkeypatch) -> None:
    monkeypatch.setattr("switchyard.services.engine.monitoring.metrics.REFRESH_TIMEOUT", 0.01)

    async def fail() -> None:
        raise OSError("the disk is gone")

    async def hang() -> None:
        await asyncio.Event().wait()

    metrics = Metrics()
    metrics.before_scrape(fail)
    metrics.before_scrape(hang)
    watch_ledger(metrics)
    assert b"switchyard_ledger_seconds" in await metrics.scrape()


def parse(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
