"""From one published job to a linked document, with real workers on the real broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.engine.jobs.registry import InvalidPayload
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.integration.pipeline.arxiv.papers import ID, STAGES
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer, make_papers
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, open_system


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path, site: ArxivServer
) -> AsyncIterator[System]:
    async with open_system(
        broker310,
        sqlite_url,
        modules=job_modules(),
        data_dir=tmp_path / "data",
        arxiv_base_url=site.url,
        arxiv_interval=0.1,
    ) as system:
        yield system


async def wait_until_completed(system: System, *papers: str) -> None:
    """Wait until the documents of these papers, and no others, are completed."""

    async def are_completed() -> bool:
        documents = (await PipelineLedger(system.ledger).documents.list_documents()).items
        completed_sources = {each.source for each in documents if each.state == "completed"}
        return completed_sources == {f"arxiv:{each}" for each in papers}

    await eventually(are_completed, 60.0, f"documents of {papers}")


@pytest.mark.long
async def test_one_job_takes_a_paper_through_every_stage(system: System, site: ArxivServer) -> None:
    await system.start_worker("ingest", "llm", "embed", "link")
    first_id = await system.publish("hot.ingest_arxiv", {"id": ID})
    await wait_until_completed(system, ID)
    record = await system.wait_for_state(first_id, State.SUCCEEDED)
    assert record.result is not None
    document_id = record.result["document_id"]
    raw = Storage(system.settings.files_url).get(result_key(document_id))
    result = json.loads(raw)
    assert result["title"] == site.papers[0].title
    assert result["entry"]["authors"] == list(site.papers[0].authors)
    assert result["summary"]["summary"]
    jobs = await system.ledger.job_reads.pipeline(first_id)
    assert {job.job_type for job in jobs} == set(STAGES)

    repeat_id = await system.publish("backfill.ingest_arxiv", {"id": f"arXiv:{ID}v1"})
    record = await system.wait_for_state(repeat_id, State.SUCCEEDED)
    assert record.result == {"document_id": document_id, "duplicate": True, "state": "completed"}
    assert len(await system.ledger.job_reads.pipeline(repeat_id)) == 1


@pytest.mark.long
async def test_the_papers_of_a_query_go_through_every_stage(
    system: System, site: ArxivServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.pipeline.workers.ingest.arxiv.PAGE_SIZE", 2)
    site.papers = make_papers(3)
    await system.start_worker("ingest", "llm", "embed", "link")
    query_id = await system.publish("hot.ingest_arxiv", {"query": "cat:physics.ao-ph"})
    await wait_until_completed(system, *(paper.id for paper in site.papers))
    for document in (await PipelineLedger(system.ledger).documents.list_documents()).items:
        # Each paper has a run of its own.
        assert document.pipeline is not None
        jobs = await system.ledger.job_reads.pipeline(document.pipeline)
        assert (len(jobs), {job.job_type for job in jobs}) == (len(STAGES), set(STAGES))
    assert len(await system.ledger.job_reads.pipeline(query_id)) == 2
    assert len(site.requests) == 2  # one for each page of the query, and none for a paper


async def test_a_paper_that_does_not_exist_is_dead_after_one_attempt(system: System) -> None:
    await system.start_worker("ingest")
    job_id = await system.publish("hot.ingest_arxiv", {"id": "0000.0000"})
    letter = await system.wait_for_letter(job_id)
    assert letter.info.reason is Reason.PERMANENT
    record = await system.wait_for_state(job_id, State.DEAD)
    assert (record.attempts, record.error_message) == (1, "arXiv has no paper 0000.0000")


async def test_a_malformed_id_is_refused_at_once_and_dead_when_it_comes_by_itself(
    system: System, site: ArxivServer
) -> None:
    await system.start_worker("ingest")
    with pytest.raises(InvalidPayload, match="'abc' is no arXiv id"):
        await system.publish("hot.ingest_arxiv", {"id": "abc"})
    foreign = await system.publish_foreign("hot.ingest_arxiv", {"id": "abc"})
    letter = await system.wait_for_letter(foreign.job_id)
    assert letter.info.reason is Reason.INVALID_PAYLOAD
    assert "they look like 1605.08386" in letter.info.message
    # This id looks valid to us.
    refused = server.refusal("incorrect id format for 2499.99999")
    site.next(lambda exchange, _: exchange.send(400, refused))
    job_id = await system.publish("hot.ingest_arxiv", {"id": "2499.99999"})
    await system.wait_for_letter(job_id)
    record = await system.wait_for_state(job_id, State.DEAD)
    assert (record.error_type, record.attempts) == ("SourceRefused", 1)


async def test_temporary_failures_are_retried(system: System, site: ArxivServer) -> None:
    await system.start_worker("ingest")
    site.next(server.cut_in_the_middle(), server.says(b"<html>", "text/html"))
    job_id = await system.publish("hot.ingest_arxiv", {"id": ID})
    record = await system.wait_for_state(job_id, State.SUCCEEDED)
    assert [each.outcome for each in record.timeline] == ["retry", "retry"]


async def test_a_429_pauses_all_workers_and_uses_up_no_attempt(
    system: System, site: ArxivServer
) -> None:
    site.papers = make_papers(6)
    site.next(server.throttled(2))
    for _ in range(2):  # two workers, as on two machines
        await system.start_worker("ingest")
    jobs = [
        await system.publish("hot.ingest_arxiv", {"id": paper.id}, max_attempts=1)
        for paper in site.papers
    ]
    await system.wait_until_all(jobs, State.SUCCEEDED)
    first, *later = sorted(request.at for request in site.requests)
    assert len(later) == len(jobs)
    assert min(later) - first > 1.9
    assert site.most_at_once == 1
    # Each job had one attempt only, so snoozing has used up none.
