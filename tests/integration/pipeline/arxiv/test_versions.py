"""A newer version of a paper replaces an older one, in whatever order their stages run."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from itertools import permutations
from typing import Any
from uuid import uuid4

import pytest

from switchyard.services.common.files.storage_keys import stage_key
from switchyard.services.engine.jobs.outcomes import Done, Next, Outcome, Snooze
from switchyard.services.llm.llm_errors import LlmRefused
from switchyard.services.pipeline.workers.ingest.arxiv_documents import IngestedVersion, takes_over
from switchyard.services.pipeline.workers.stages import INGEST
from tests.integration.pipeline.arxiv.papers import ID, JOB, STAGES, read_vectors
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import get_only_document, read_only_result
from tests.support.arxiv_server import ArxivServer
from tests.support.eventually import eventually
from tests.support.llm_server import DIMENSIONS, FakeLlmServer, answers, embeds, fails
from tests.support.site import held


async def test_a_newer_version_replaces_what_the_document_has(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    first = await get_only_document(arxiv_pipeline)
    # As long as before: whether an output is reused must not be decided by its size.
    abstract = site.papers[0].abstract.replace("Tides", "Waves")
    site.replace(ID, version=2, abstract=abstract)
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    assert arxiv_pipeline.result(JOB)["updated"] is True
    second = await get_only_document(arxiv_pipeline)
    assert (second.id, second.filename, second.state) == (first.id, f"{ID}v2.md", "completed")
    assert second.content_hash != first.content_hash
    result = await read_only_result(arxiv_pipeline)
    assert result["entry"]["version"] == 2
    assert "Waves" in result["summary"]["summary"]
    assert await arxiv_pipeline.run(JOB, {"id": f"{ID}v1"}) == [JOB]  # the older one adds nothing
    assert (await get_only_document(arxiv_pipeline)).filename == f"{ID}v2.md"


async def test_a_new_version_with_the_same_abstract_pays_for_no_summary(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    site.replace(ID, version=2, comment="21 pages")
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    assert arxiv_pipeline.result("summarize_content")["reused"] is True
    assert (await read_only_result(arxiv_pipeline))["entry"]["comment"] == "21 pages"


@pytest.mark.parametrize("stage", ["summarize_content", "embed_content"])
async def test_late_results_of_an_older_version_are_discarded(
    arxiv_pipeline: Pipeline, site: ArxivServer, llm: FakeLlmServer, stage: str
) -> None:
    update = {"llm_base_url": llm.url, "embed_base_url": llm.url, "embed_dimensions": DIMENSIONS}
    arxiv_pipeline = replace(
        arxiv_pipeline, settings=arxiv_pipeline.settings.model_copy(update=update)
    )
    first = await arxiv_pipeline.run_job(JOB, {"id": ID})
    assert isinstance(first, Next)
    payload = dict(first.jobs[0].payload)
    for earlier_stage in STAGES[1 : STAGES.index(stage)]:
        await arxiv_pipeline.run_job(earlier_stage, payload)
    request_count, release = len(llm.requests), threading.Event()
    llm.next(held(release, answers("The old one.") if stage == "summarize_content" else embeds()))
    late_stage = asyncio.create_task(arxiv_pipeline.run_job(stage, payload))
    try:
        await eventually(lambda: len(llm.requests) > request_count)
        site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
        llm.next(answers("The new one."))
        assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
        stored_before = await read_only_result(arxiv_pipeline), await read_vectors(arxiv_pipeline)
    finally:
        release.set()
    assert await late_stage == Done({"document_id": payload["document_id"], "superseded": True})
    assert (
        await read_only_result(arxiv_pipeline),
        await read_vectors(arxiv_pipeline),
    ) == stored_before
    assert stored_before[0]["summary"]["summary"] == "The new one."
    await arxiv_pipeline.run("link_content", {**payload, "force": True})
    assert (await read_only_result(arxiv_pipeline))["summary"] == stored_before[0]["summary"]
    assert (await get_only_document(arxiv_pipeline)).state == "completed"


@pytest.mark.parametrize("stage", STAGES[2:])
async def test_a_stage_of_an_older_version_leaves_the_rest_to_the_newer_one(
    arxiv_pipeline: Pipeline, site: ArxivServer, stage: str
) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    before = await read_only_result(arxiv_pipeline)
    site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
    newer = await arxiv_pipeline.run_job(JOB, {"id": ID})
    assert isinstance(newer, Next)
    payload = dict(newer.jobs[0].payload)
    late_stage = await arxiv_pipeline.run_job(stage, payload, attempt=3)
    assert late_stage == Done({"document_id": payload["document_id"], "superseded": True})
    assert await read_only_result(arxiv_pipeline) == before
    assert await arxiv_pipeline.run("extract_text", payload) == STAGES[1:]
    assert (await read_only_result(arxiv_pipeline))["entry"]["version"] == 2
    assert (await get_only_document(arxiv_pipeline)).state == "completed"


async def test_a_stage_of_an_older_version_that_fails_too_late_changes_nothing(
    arxiv_pipeline: Pipeline, site: ArxivServer, llm: FakeLlmServer
) -> None:
    arxiv_pipeline = replace(
        arxiv_pipeline,
        settings=arxiv_pipeline.settings.model_copy(update={"llm_base_url": llm.url}),
    )
    first = await arxiv_pipeline.run_job(JOB, {"id": ID})
    assert isinstance(first, Next)
    payload = dict(first.jobs[0].payload)
    await arxiv_pipeline.run_job("extract_text", payload)
    release = threading.Event()
    llm.next(held(release, fails(401, "no such key")))
    late_stage = asyncio.create_task(arxiv_pipeline.run_job("summarize_content", payload))
    try:
        await eventually(lambda: len(llm.requests) == 1)
        site.replace(ID, version=2, abstract="Waves, and nothing but waves.")
        assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    finally:
        release.set()
    with pytest.raises(LlmRefused):
        await late_stage
    assert (await get_only_document(arxiv_pipeline)).state == "completed"


@pytest.mark.parametrize("number", range(8))
async def test_of_several_versions_at_once_the_newest_stays(
    arxiv_pipeline: Pipeline, site: ArxivServer, number: int
) -> None:
    jobs = []
    for version in (1, 2, 3):
        site.replace(ID, version=version, abstract=f"Waves of version {version}.")
        outcome = await arxiv_pipeline.run_job(JOB, {"query": "cat:physics.ao-ph"})
        assert isinstance(outcome, Next)
        jobs.append(dict(outcome.jobs[0].payload))

    async def ingest_version(payload: dict[str, Any]) -> Outcome:
        copied_pipeline, run_id = replace(arxiv_pipeline), str(uuid4())
        outcome: Outcome = Snooze(0)
        while isinstance(outcome, Snooze):
            outcome = await copied_pipeline.run_job(JOB, payload, run_id=run_id)
        return outcome

    await asyncio.gather(
        *(ingest_version(payload) for payload in list(permutations(jobs))[number % 6])
    )
    document = await get_only_document(arxiv_pipeline)
    assert document.filename == f"{ID}v3.md"
    ingest_result = json.loads(arxiv_pipeline.storage.get(stage_key(document.id, INGEST.name)))[
        "result"
    ]
    assert ingest_result["entry"]["version"] == 3
    assert b"version 3" in arxiv_pipeline.storage.get(ingest_result["key"])


@pytest.mark.parametrize(
    ("ingested", "offered", "replaces"),
    [
        (None, IngestedVersion(9, True), False),
        (IngestedVersion(1, False), IngestedVersion(1, False), False),
        (IngestedVersion(1, False), IngestedVersion(2, False), True),
        (IngestedVersion(10, False), IngestedVersion(9, True), False),
        (IngestedVersion(9, False), IngestedVersion(10, False), True),
        (IngestedVersion(1, False), IngestedVersion(1, True), True),
        (IngestedVersion(1, True), IngestedVersion(1, False), False),
        (IngestedVersion(1, True), IngestedVersion(2, False), True),
    ],
)
def test_a_newer_or_fuller_version_replaces_an_older_one(
    ingested: IngestedVersion | None, offered: IngestedVersion, replaces: bool
) -> None:
    assert takes_over(ingested, offered) is replaces
