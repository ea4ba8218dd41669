"""Derived job ids: the same each time, and unpredictable without the system's key."""

from collections.abc import Callable
from uuid import UUID

import pytest

from switchyard.services.engine.actions.spec import rerun_id_of
from switchyard.services.engine.backfill.spec import item_job_id, then_id_of
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.publishing.preparing import JobRequest, job_id_of, prepare
from switchyard.services.engine.publishing.requests import job_id_for
from switchyard.services.engine.records.bulk import notice_id_of
from switchyard.services.engine.records.job_ids import PUBLIC_IDS, JobIds
from switchyard.services.engine.schedules import service as schedules
from switchyard.services.pipeline.crawls.crawl_pages import make_pages
from switchyard.services.pipeline.documents.pipeline_runs import run_id

REGISTRY = Registry.load()
CRAWL = "6b0f2f1e-5f6f-4d7e-9e0a-6f1b7c2d9e11"


def id_of_keyed_request(ids: JobIds) -> str:
    request = JobRequest(
        "backfill.crawl_page",
        {"crawl_id": CRAWL, "url": "http://example.org/"},
        idempotency_key="daily",
    )
    return prepare(REGISTRY, request, ids=ids).message.job_id


def id_of_crawled_page(ids: JobIds) -> str:
    (page,) = make_pages(REGISTRY, ids, CRAWL, ["http://example.org/"], 0, None, tags={})
    return page.job.message.job_id


@pytest.mark.parametrize(
    "make_id",
    [
        lambda ids: job_id_of(ids, "parent", "embed", 0),
        lambda ids: item_job_id(ids, "backfill-1", "2401.00001"),
        lambda ids: then_id_of(ids, "backfill-1"),
        lambda ids: notice_id_of(ids, "backfill-1"),
        lambda ids: rerun_id_of(ids, "rerun-1", "job"),
        lambda ids: schedules.job_id_of(ids, "nightly", 1_800_000_000.0),
        lambda ids: job_id_for(ids, "webhook:github/delivery", "noop", {}),
        lambda ids: run_id(ids, "document"),
        id_of_keyed_request,
        id_of_crawled_page,
    ],
)
def test_an_id_is_the_same_each_time_and_differs_between_systems(
    make_id: Callable[[JobIds], str],
) -> None:
    ids = JobIds(b"a" * 32)
    job_id = make_id(ids)
    assert make_id(JobIds(ids.key)) == job_id
    assert str(UUID(job_id)) == job_id
    assert len({job_id, make_id(JobIds(b"b" * 32)), make_id(PUBLIC_IDS)}) == 3


def test_the_key_is_not_in_the_repr() -> None:
    assert "aaa" not in f"{JobIds(b'a' * 32)!r}"
