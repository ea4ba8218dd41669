"""Make the jobs that visit a crawl's pages, and measure how full their queues are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import NAMESPACE_URL, uuid5

from switchyard.broker.lanes import BACKFILL, queue_name
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring.lane_pressure import Snapshot
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.states import Pressure, fullest
from switchyard.services.pipeline.crawls.crawl_bounds import host_of
from switchyard.services.pipeline.records.crawls import FoundPage

JOB_TYPE = "crawl_page"
SLOW_LANE_FACTOR = 5.0
"""Factor for the interval between pages of a host while the lane's pressure is SLOW."""
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/crawls")


def make_pages(
    registry: Registry,
    ids: JobIds,
    crawl_id: str,
    urls: Iterable[str],
    depth: int,
    found_by: str | None,
    *,
    tags: Mapping[str, str],
) -> Iterator[FoundPage]:
    """Yield the pages with the jobs that would visit them. An address has the same job however
    often and wherever it is found."""
    for url in urls:
        request = JobRequest(
            f"{BACKFILL.name}.{JOB_TYPE}",
            {"crawl_id": crawl_id, "url": url},
            source=f"crawl:{crawl_id}",
            tags=tags,
            job_id=ids.derive(_NAMESPACE, f"{crawl_id}/{url}"),
        )
        yield FoundPage(url, host_of(url), depth, prepare(registry, request), found_by)


def crawl_pressure(snapshot: Snapshot) -> Pressure:
    """Return the pressure of the fullest of the queues that crawled pages go through."""
    names = (queue_name(BACKFILL.name, worker) for worker in BACKFILL.workers)
    queues = filter(None, map(snapshot.queue, names))
    return fullest(each.pressure for each in queues)
