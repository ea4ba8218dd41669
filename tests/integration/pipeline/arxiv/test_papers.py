"""`ingest_arxiv`: a paper becomes a document, by its abstract or by its whole text."""

from __future__ import annotations

import pytest

from switchyard.services.common.files.safe_http import FetchFailed, FetchRefused
from switchyard.services.engine.jobs.outcomes import Next, Snooze
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from tests.integration.pipeline.arxiv.papers import ID, JOB, STAGES
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import get_only_document, read_only_result
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer, Paper
from tests.support.pdfs import TEXT, pdf


async def test_a_paper_is_summarised_embedded_and_linked(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    document = await get_only_document(arxiv_pipeline)
    assert (document.state, document.source) == ("completed", f"arxiv:{ID}")
    assert (document.filename, document.title) == (f"{ID}v1.md", site.papers[0].title)
    result = await read_only_result(arxiv_pipeline)
    assert result["summary"]["summary"]
    assert result["chunks"] == 1
    assert (
        result["entry"]
        | {
            "authors": ["Ada Tide", "Müller, J."],
            "categories": ["physics.ao-ph"],
            "published": "2024-03-01T12:00:00Z",
            "comment": "20 pages",
            "doi": "10.1000/182",
            "journal_ref": None,
            "pdf_url": f"{site.origin}/pdf/{ID}v1",
            "full_text": False,
            "withdrawn": False,
        }
        == result["entry"]
    )
    assert arxiv_pipeline.result(JOB) == {
        "document_id": document.id,
        "duplicate": False,
        "source": f"arxiv:{ID}",
        "version": 1,
        "full_text": False,
        "updated": False,
    }


@pytest.mark.parametrize("repeat", [{"id": ID}, {"id": f"{ID}v1"}, {"id": f"arXiv:{ID}"}])
async def test_the_same_version_again_runs_nothing(
    arxiv_pipeline: Pipeline, repeat: dict[str, str]
) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    assert await arxiv_pipeline.run(JOB, repeat) == [JOB]
    document = await get_only_document(arxiv_pipeline)
    assert arxiv_pipeline.result(JOB) == {
        "document_id": document.id,
        "duplicate": True,
        "state": "completed",
    }


async def test_force_runs_every_stage_again(arxiv_pipeline: Pipeline) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    assert await arxiv_pipeline.run(JOB, {"id": ID, "force": True}) == STAGES
    assert arxiv_pipeline.result("summarize_content")["reused"] is False


async def test_a_job_delivered_again_continues_where_it_was(arxiv_pipeline: Pipeline) -> None:
    """The worker was killed after it had written the document's record."""
    first = await arxiv_pipeline.run_job(JOB, {"id": ID})
    assert isinstance(first, Next)
    repeat = await arxiv_pipeline.run_job(JOB, {"id": ID}, attempt=2)
    assert isinstance(repeat, Next)
    assert repeat.jobs == first.jobs


async def test_two_papers_with_the_same_words_are_one_document(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    site.papers.append(Paper("1605.00001"))
    await arxiv_pipeline.run(JOB, {"id": ID})
    assert await arxiv_pipeline.run(JOB, {"id": "1605.00001"}) == [JOB]
    assert arxiv_pipeline.result(JOB)["duplicate"] is True


@pytest.mark.parametrize("text", ["# Lies\n\nA text of my own.", None])
async def test_a_file_that_claims_the_source_of_a_paper_does_not_take_its_place(
    arxiv_pipeline: Pipeline, text: str | None
) -> None:
    """A file that claims the paper's source does not become the paper: neither one with another
    text, nor one with the paper's own text, which becomes the paper's document."""
    paper = f"# {Paper(ID).title}\n\n{Paper(ID).abstract}\n"
    key = "uploads/incoming/0123456789abcdef0123456789abcdef"
    arxiv_pipeline.storage.put(key, (text or paper).encode())
    payload = {"key": key, "source": f"arxiv:{ID}", "title": "Lies", "filename": f"{ID}v99.md"}
    await arxiv_pipeline.run("ingest_document", payload)
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    assert arxiv_pipeline.ledger is not None
    [paper_document] = (
        await PipelineLedger(arxiv_pipeline.ledger).documents.list_documents(source=f"arxiv:{ID}")
    ).items
    assert (paper_document.title, paper_document.filename, paper_document.state) == (
        Paper(ID).title,
        f"{ID}v1.md",
        "completed",
    )
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == [JOB]
    assert arxiv_pipeline.result(JOB)["document_id"] == paper_document.id


async def test_a_paper_that_has_failed_keeps_its_source(arxiv_pipeline: Pipeline) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    assert arxiv_pipeline.ledger is not None
    paper_document = await get_only_document(arxiv_pipeline)
    await PipelineLedger(arxiv_pipeline.ledger).documents.set_stage(
        paper_document.id, "extract_text", "failed"
    )
    key = "uploads/incoming/0123456789abcdef0123456789abcdef"
    arxiv_pipeline.storage.put(key, b"# Lies\n\nA text of my own.")
    await arxiv_pipeline.run("ingest_document", {"key": key, "source": f"arxiv:{ID}"})
    documents = (await PipelineLedger(arxiv_pipeline.ledger).documents.list_documents()).items
    assert {each.id: each.source for each in documents if each.id == paper_document.id} == {
        paper_document.id: f"arxiv:{ID}"
    }
    assert [each.source for each in documents if each.id != paper_document.id] == [None]


async def test_an_entry_in_the_payload_is_not_requested(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    outcome = await arxiv_pipeline.run_job(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    [child] = outcome.jobs
    assert await arxiv_pipeline.run(JOB, dict(child.payload)) == STAGES
    assert len(site.requests) == 1


async def test_the_pdf_is_read_with_full_text(arxiv_pipeline: Pipeline, site: ArxivServer) -> None:
    await arxiv_pipeline.run(JOB, {"id": ID})
    site.pdfs[f"{ID}v1"] = pdf([TEXT, TEXT])
    assert await arxiv_pipeline.run(JOB, {"id": ID, "full_text": True}) == STAGES
    assert (await get_only_document(arxiv_pipeline)).filename == f"{ID}v1.pdf"
    result = await read_only_result(arxiv_pipeline)
    assert (result["page_count"], result["media_type"]) == (2, "application/pdf")
    assert result["entry"]["full_text"] is True
    # The abstract does not replace the full text.
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == [JOB]

    site.replace(ID, version=2)
    site.pdfs[f"{ID}v2"] = pdf([TEXT])
    assert await arxiv_pipeline.run(JOB, {"id": ID}) == STAGES
    assert (await read_only_result(arxiv_pipeline))["page_count"] == 1


async def test_a_withdrawn_paper_is_ingested_by_its_abstract(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    site.replace(ID, comment="This paper has been withdrawn by the authors")
    assert await arxiv_pipeline.run(JOB, {"id": ID, "full_text": True}) == STAGES
    entry = (await read_only_result(arxiv_pipeline))["entry"]
    assert (entry["withdrawn"], entry["full_text"]) == (True, False)


async def test_a_pdf_elsewhere_is_not_fetched_from_our_own_network(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    """The link comes from outside; only the host of the settings may be one of ours."""
    with ArxivServer() as internal_server:
        internal_server.pdfs[f"{ID}v1"] = pdf()
        site.replace(ID, pdf_url=f"{internal_server.origin}/pdf/{ID}v1")
        with pytest.raises(FetchRefused, match="open internet"):
            await arxiv_pipeline.run_job(JOB, {"id": ID, "full_text": True})
        assert internal_server.requests == []


async def test_a_page_in_the_place_of_a_pdf_is_tried_again(
    arxiv_pipeline: Pipeline, site: ArxivServer
) -> None:
    feed_answer = server.answer_well
    for page in (b"<!doctype html><p>being made", b"being made"):
        site.next(feed_answer, server.says(page, "text/html"))
        with pytest.raises(InvalidSourceResponse, match="PDF of 1605"):
            await arxiv_pipeline.run_job(JOB, {"id": ID, "full_text": True})
    site.next(feed_answer, server.fails(500))
    with pytest.raises(FetchFailed, match="500"):
        await arxiv_pipeline.run_job(JOB, {"id": ID, "full_text": True})
    site.next(feed_answer, server.throttled(40))
    outcome = await arxiv_pipeline.run_job(JOB, {"id": ID, "full_text": True})
    assert isinstance(outcome, Snooze)
    assert outcome.after == 40
