"""Queries of arXiv become papers, page by page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from switchyard.services.engine.jobs.outcomes import Next
from tests.integration.pipeline.arxiv.papers import JOB
from tests.integration.pipeline.conftest import Pipeline
from tests.support.arxiv_server import ArxivServer, make_papers

MARCH = datetime(2024, 3, 1, 12, tzinfo=UTC)


async def test_a_query_is_followed_page_by_page(
    arxiv_pipeline: Pipeline, site: ArxivServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.pipeline.workers.ingest.arxiv.PAGE_SIZE", 4)
    site.papers = make_papers(15)
    payload = {"query": "cat:physics.ao-ph", "start": 1, "max_results": 10, "force": True}
    ids, sizes, starts = [], [], []
    while payload:
        outcome = await arxiv_pipeline.run_job(JOB, payload)
        assert isinstance(outcome, Next)
        starts.append(outcome.result["start"])
        papers = [job.payload for job in outcome.jobs if "id" in job.payload]
        next_pages = [dict(job.payload) for job in outcome.jobs if "query" in job.payload]
        assert all(each["force"] for each in papers)
        ids += [each["id"] for each in papers]
        sizes.append(len(papers))
        [payload] = next_pages or [{}]
    assert ids == [f"2403.{number:05}v1" for number in range(13, 3, -1)]  # the newest first
    assert (sizes, starts) == ([4, 4, 2], [1, 5, 9])


async def test_since_finds_newer_papers_oldest_first(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    site.papers = make_papers(5)
    site.replace("2403.00000", updated=MARCH + timedelta(days=9), version=2)
    since = (MARCH + timedelta(hours=3)).isoformat()
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "ti:number", "since": since})
    assert isinstance(outcome, Next)
    assert [job.payload["id"] for job in outcome.jobs] == ["2403.00003v1", "2403.00004v1"]
    payload_by_update = {"query": "ti:number", "since": since, "date": "lastUpdatedDate"}
    outcome = await arxiv_pipeline.run_job(JOB, payload_by_update)
    assert isinstance(outcome, Next)
    assert [job.payload["id"] for job in outcome.jobs][-1] == "2403.00000v2"
    naive = since.removesuffix("+00:00")
    assert isinstance(
        await arxiv_pipeline.run_job(JOB, {"query": "ti:number", "since": naive}), Next
    )


async def test_a_query_that_finds_nothing_is_done(arxiv_pipeline: Pipeline) -> None:
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "cat:math.CO"})
    assert outcome == Next([], {"papers": 0, "start": 0, "total": 0, "next_start": None})
