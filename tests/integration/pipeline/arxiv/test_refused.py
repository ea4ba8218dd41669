"""Payloads and papers that `ingest_arxiv` refuses, and how long it snoozes when arXiv asks for
a pause."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.services.engine.jobs.outcomes import Done, Next, Snooze
from switchyard.services.engine.jobs.registry import InvalidPayload
from switchyard.services.pipeline.sources.source_errors import SourceNotFound, SourceRefused
from switchyard.services.pipeline.workers.ingest.source_jobs import snooze_for
from tests.integration.pipeline.arxiv.papers import ID, JOB
from tests.integration.pipeline.conftest import Pipeline
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "either id or query"),
        ({"id": ID, "query": "all:x"}, "either id or query"),
        ({"id": "abc"}, "'abc' is no arXiv id"),
        ({"id": ID, "since": "2024-03-01"}, "for a query"),
        ({"query": ""}, "query"),
        ({"query": "x", "max_results": 0}, "max_results"),
        ({"query": "x", "start": 9_950}, None),
        ({"query": "x", "start": 9_950, "max_results": 100}, "beyond 10,000"),
        ({"query": "x", "since": "yesterday"}, "since"),
        ({"query": "x", "page": 1}, "page"),
        ({"id": ID, "entry": {"id": ID}}, "entry"),
    ],
)
def test_a_payload_is_checked_when_it_is_published(
    arxiv_pipeline: Pipeline, payload: dict[str, Any], message: str | None
) -> None:
    job_type = arxiv_pipeline.registry.get(JOB)
    if message is None:
        job_type.validate(payload)
        return
    with pytest.raises(InvalidPayload, match=message):
        job_type.validate(payload)


async def test_an_entry_of_another_paper_is_refused(arxiv_pipeline: Pipeline) -> None:
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    payload = {**outcome.jobs[0].payload, "id": "1605.00001"}
    with pytest.raises(InvalidPayload, match="of another paper"):
        arxiv_pipeline.registry.get(JOB).validate(payload)


async def test_a_paper_that_does_not_exist_is_a_permanent_error(arxiv_pipeline: Pipeline) -> None:
    with pytest.raises(SourceNotFound, match=r"no paper 0000\.0000"):
        await arxiv_pipeline.run_job(JOB, {"id": "0000.0000"})


async def test_a_refusal_of_arxiv_is_a_permanent_error(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    refusal = server.refusal("incorrect id format for 9999.99999")
    site.next(server.answers(400, refusal))
    with pytest.raises(SourceRefused, match="incorrect id format for 9999"):
        await arxiv_pipeline.run_job(JOB, {"id": "9999.99999"})


async def test_a_throttled_job_snoozes(arxiv_pipeline: Pipeline, site: ArxivServer) -> None:
    site.next(server.throttled(77))
    outcome = await arxiv_pipeline.run_job(JOB, {"id": ID})
    assert isinstance(outcome, Snooze)
    assert outcome.after == 77
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "all:x"})
    assert isinstance(outcome, Snooze)
    assert 60 < outcome.after <= 77
    assert len(site.requests) == 1


@pytest.mark.parametrize(
    ("wait", "age", "chance", "expected"),
    [
        (3, 0, 1, 3),
        (3, 10, 1, 3),
        (3, 60, 1, 12),
        (3, 60, 0.5, 6),
        (3, 60, 0, 3),
        (100, 60, 1, 100),
        (3, 100_000, 1, 80),
        (3, -5, 1, 3),
    ],
)
def test_a_job_that_waits_long_asks_for_its_turn_less_often(
    wait: float, age: float, chance: float, expected: float
) -> None:
    assert snooze_for(wait, age, chance) == expected


async def test_a_paper_with_its_entry_in_the_payload_is_ingested_while_arxiv_is_paused(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    site.next(server.throttled(77))
    assert isinstance(await arxiv_pipeline.run_job(JOB, {"id": ID}), Snooze)
    assert not isinstance(
        await arxiv_pipeline.run_job(JOB, dict(outcome.jobs[0].payload)), Snooze | Done
    )
