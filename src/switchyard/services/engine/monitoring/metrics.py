"""Collect and expose the metrics of one process (metric_names.py)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric as Family

from switchyard.broker.lanes import LANES
from switchyard.services.engine.monitoring.histogram import Histogram
from switchyard.services.engine.monitoring.metric_names import (
    LEDGER_FAILURES,
    LEDGER_SECONDS,
    PUBLISHES,
    Distributions,
    Metric,
    Samples,
)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
REFRESH_TIMEOUT = 8.0
"""Seconds that each callback before a scrape may take; Prometheus gives up on a scrape after
ten."""


class Metrics:
    """Collects the metrics of one process. Each part keeps its own numbers, and is asked for them
    at a scrape. So counting needs no lock, and no look-up by labels."""

    def __init__(self, *, of_process: bool = True) -> None:
        """With `of_process`, expose this process's memory and processor time, too."""
        self._registry = CollectorRegistry(auto_describe=False)
        if of_process:
            ProcessCollector(registry=self._registry)
        self._registry.register(FamilySource(self._collect))
        self._log = structlog.get_logger("metrics")
        self._before_scrape: list[Callable[[], Awaitable[None]]] = []
        self._values: list[Callable[[], Iterable[tuple[Metric, Samples]]]] = []
        self._histograms: list[Callable[[], Iterable[tuple[Metric, Distributions]]]] = []

    def add_source(self, source: Callable[[], Iterable[tuple[Metric, Samples]]]) -> None:
        """Ask `source` at every scrape for counters and gauges. Values of several sources for the
        same metric and labels are added up."""
        self._values.append(source)

    def add_histogram_source(
        self, source: Callable[[], Iterable[tuple[Metric, Distributions]]]
    ) -> None:
        """Ask `source` at every scrape for histograms; those of several sources are added up."""
        self._histograms.append(source)

    def _collect(self) -> Iterable[Family]:
        values: dict[Metric, dict[tuple[str, ...], float]] = {}
        for metric, samples in chain.from_iterable(source() for source in self._values):
            sums = values.setdefault(metric, {})
            for labels, value in samples.items():
                sums[labels] = sums.get(labels, 0.0) + value
        yield from (metric.family(sums) for metric, sums in values.items())
        histograms: dict[Metric, defaultdict[tuple[str, ...], Histogram]] = {}
        for metric, parts in chain.from_iterable(source() for source in self._histograms):
            totals = histograms.setdefault(metric, defaultdict(metric.distribution))
            for labels, part in parts.items():
                totals[labels].add_all(part)
        yield from (metric.histogram(totals) for metric, totals in histograms.items())

    def before_scrape(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await `callback` before every scrape. Its errors are logged, and the scrape continues."""
        self._before_scrape.append(callback)

    async def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        for callback in self._before_scrape:
            try:
                async with asyncio.timeout(REFRESH_TIMEOUT):
                    await callback()
            except Exception as error:  # a scrape exposes what it can
                self._log.warning("metrics not refreshed", error=str(error) or type(error).__name__)
        return generate_latest(self._registry)


@dataclass(frozen=True, slots=True)
class FamilySource:
    """A collector of `prometheus_client` whose values are kept elsewhere."""

    collect: Callable[[], Iterable[Family]]


def watch_ledger(metrics: Metrics) -> Callable[[str, float, bool], None]:
    """Return a function for `Ledger.observe` that measures and counts transactions in `metrics`."""
    seconds = {work: LEDGER_SECONDS.distribution() for work in ("read", "write")}
    failures = dict.fromkeys(seconds, 0)

    def count_transaction(work: str, duration: float, succeeded: bool) -> None:
        seconds[work].add(duration)
        failures[work] += not succeeded

    metrics.add_histogram_source(
        lambda: [(LEDGER_SECONDS, {(work,): each for work, each in seconds.items()})]
    )
    metrics.add_source(
        lambda: [(LEDGER_FAILURES, {(work,): float(each) for work, each in failures.items()})]
    )
    return count_transaction


def show_publishes(metrics: Metrics, counts: Mapping[tuple[str, str], int]) -> None:
    """Expose the counts of a publisher (`broker.Publisher.counts`)."""
    # Prometheus sees no increase in a series that begins at 1.
    zeros = {(lane.name, "full"): 0 for lane in LANES}

    def collect_publishes() -> list[tuple[Metric, Samples]]:
        numbers = {**zeros, **counts}
        return [(PUBLISHES, {key: float(number) for key, number in numbers.items()})]

    metrics.add_source(collect_publishes)
