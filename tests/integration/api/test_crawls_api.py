"""`/crawl`, by the client and by plain HTTP requests."""

import asyncio
from typing import Any

import pytest

from switchyard.api.client import AsyncClient, NotFound
from tests.support.api_server import RunningApi, problem, serving
from tests.support.commands import jobctl
from tests.support.system import System

START = {"start": ["https://example.org/a#b"]}


async def test_a_crawls_life_by_the_client(api: RunningApi) -> None:
    async with AsyncClient(api.url) as client:
        crawl = await client.crawl(
            "https://example.org/a#b", hosts=["*.example.org"], max_pages=7, tags={"team": "search"}
        )
        assert (crawl.state, crawl.claimed, crawl.pages) == ("running", 1, {"scheduled": 1})
        assert (crawl.start, crawl.hosts) == (
            ["https://example.org/a"],
            ["example.org", "*.example.org"],
        )
        assert await client.crawl_progress(crawl.id) == crawl
        assert await client.crawl_progress(crawl.id[:8]) == crawl
        (listed,) = (await client.crawls()).crawls
        assert listed == crawl
        (page,) = (await client.crawl_pages(crawl.id[:8])).pages
        assert (page.url, page.depth, page.state, page.outcome) == (
            "https://example.org/a",
            0,
            "scheduled",
            None,
        )
        assert (await client.job(page.job_id)).tags == {"team": "search"}
        ended = await client.cancel_crawl(crawl.id[:8])
        assert (ended.state, ended.pages) == ("cancelled", {"cancelled": 1})
        with pytest.raises(NotFound):
            await client.crawl_progress("0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11")


async def test_the_same_key_is_the_same_crawl(api: RunningApi) -> None:
    key = {"Idempotency-Key": "site-1"}
    requests = [api.client.post("/crawl", json=START, headers=key) for _ in range(3)]
    answers = await asyncio.gather(*requests)
    (crawl_id,) = {each.json()["id"] for each in answers}
    again = await api.client.post("/crawl", json=START, headers=key)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (202, "true")
    assert again.headers["location"] == f"/crawl/{crawl_id}"
    assert len((await api.client.get("/crawl")).json()["crawls"]) == 1
    other = await api.client.post("/crawl", json=START | {"max_pages": 7}, headers=key)
    assert crawl_id in problem(other, 409, "idempotency-conflict")["detail"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"start": []}, "start"),
        ({"start": ["file:///etc/passwd"]}, "start"),
        ({"start": ["https://u:p@example.org/"]}, "start"),
        ({"hosts": ["*"]}, "hosts"),
        ({"hosts": ["https://example.org/"]}, "hosts"),
        ({"max_pages": 10_001}, "max_pages"),
        ({"max_pages": 0}, "max_pages"),
        ({"max_depth": 101}, "max_depth"),
        ({"within": 1e9}, "within"),
        ({"tags": {"Team": "a"}}, "tags"),
        ({"created_by": "root"}, "created_by"),
    ],
)
async def test_an_invalid_crawl_is_refused(
    shared_api: RunningApi, changes: dict[str, Any], field: str
) -> None:
    answer = await shared_api.client.post("/crawl", json=START | changes)
    body = problem(answer, 422, "invalid")
    assert field in body["errors"][0]["location"]
    assert (await shared_api.client.get("/crawl")).json()["crawls"] == []


async def test_no_crawl_is_started_while_the_lane_is_full(system: System) -> None:
    async with serving(system.settings, pressure_full_at=0.0) as api:
        answer = await api.client.post("/crawl", json=START)
        problem(answer, 503, "lane-full")
        assert answer.headers["retry-after"] == "60"
        assert (await api.client.get("/crawl")).json()["crawls"] == []
    async with serving(system.settings, pressure_slow_at=0.0) as api:
        answer = await api.client.post("/crawl", json=START)
        assert (answer.status_code, answer.headers["x-lane-pressure"]) == (202, "slow")
    key = {"Idempotency-Key": "before"}
    async with serving(system.settings) as api:
        crawl = (await api.client.post("/crawl", json=START, headers=key)).json()
    async with serving(system.settings, pressure_full_at=0.0) as api:
        # The repeated request adds no jobs.
        answer = await api.client.post("/crawl", json=START, headers=key)
        assert (answer.status_code, answer.json()["id"]) == (202, crawl["id"])


async def test_the_command_line_says_that_pages_wait_for_a_full_lane(system: System) -> None:
    settings = system.settings
    environment = {
        "JOBS_AMQP_URL": settings.require_amqp_url(),
        "JOBS_MANAGEMENT_URL": settings.require_management_url(),
        "JOBS_DATABASE_URL": settings.ledger_url,
        "JOBS_DATA_DIR": str(settings.data_dir),
        "JOBS_LLM_OK_BELOW": "1",
        "JOBS_LLM_SLOW_AT": "1",
        "JOBS_LLM_FULL_AT": "1",
    }
    started = await jobctl("crawl", "start", *START["start"], **environment)
    assert (started.returncode, "full" in started.stderr) == (0, False)
    await system.publish("backfill.noop", {})
    started = await jobctl("crawl", "start", *START["start"], **environment)
    assert started.returncode == 0
    assert "The backfill lane is full" in started.stderr
