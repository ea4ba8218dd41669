"""`ingest_arxiv`: a paper becomes a document, by its abstract or by its whole text."""

from __future__ import annotations

import pytest

from switchyard.services.common.files.safe_http import FetchFailed, FetchRefused
from switchyard.services.engine.jobs.outcomes import Next, Snooze
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from tests.integration.pipeline.arxiv.papers import ID, JOB, STAGES, the_document, whole_result
from tests.integration.pipeline.conftest import Pipeline
from tests.support import arxiv_server as server
from tests.support.arxiv_server import ArxivServer, Paper
from tests.support.pdfs import TEXT, pdf


async def test_a_paper_is_summarised_embedded_and_linked(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    document = await the_document(arxiv)
    assert (document.state, document.source) == ("completed", f"arxiv:{ID}")
    assert (document.filename, document.title) == (f"{ID}v1.md", site.papers[0].title)
    result = await whole_result(arxiv)
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
    assert arxiv.result(JOB) == {
        "document_id": document.id,
        "duplicate": False,
        "source": f"arxiv:{ID}",
        "version": 1,
        "full_text": False,
        "updated": False,
    }


@pytest.mark.parametrize("again", [{"id": ID}, {"id": f"{ID}v1"}, {"id": f"arXiv:{ID}"}])
async def test_the_same_version_again_runs_nothing(arxiv: Pipeline, again: dict[str, str]) -> None:
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, again) == [JOB]
    document = await the_document(arxiv)
    assert arxiv.result(JOB) == {
        "document_id": document.id,
        "duplicate": True,
        "state": "completed",
    }


async def test_force_runs_every_stage_again(arxiv: Pipeline) -> None:
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, {"id": ID, "force": True}) == STAGES
    assert arxiv.result("summarize_content")["reused"] is False


async def test_a_job_delivered_again_goes_on_where_it_was(arxiv: Pipeline) -> None:
    """The worker was killed after it had written the document's record."""
    first = await arxiv.one(JOB, {"id": ID})
    assert isinstance(first, Next)
    again = await arxiv.one(JOB, {"id": ID}, attempt=2)
    assert isinstance(again, Next)
    assert again.jobs == first.jobs


async def test_two_papers_with_the_same_words_are_one_document(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    site.papers.append(Paper("1605.00001"))
    await arxiv.run(JOB, {"id": ID})
    assert await arxiv.run(JOB, {"id": "1605.00001"}) == [JOB]
    assert arxiv.result(JOB)["duplicate"] is True


@pytest.mark.parametrize("text", ["# Lies\n\nA text of my own.", None])
async def test_nobody_takes_the_place_of_a_paper(arxiv: Pipeline, text: str | None) -> None:
    """A file that claims the paper's source does not become the paper: neither one with another
    text, nor one with the paper's own text, which becomes the paper's document."""
    paper = f"# {Paper(ID).title}\n\n{Paper(ID).abstract}\n"
    key = "uploads/incoming/0123456789abcdef0123456789abcdef"
    arxiv.storage.put(key, (text or paper).encode())
    sent = {"key": key, "source": f"arxiv:{ID}", "title": "Lies", "filename": f"{ID}v99.md"}
    await arxiv.run("ingest_document", sent)
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    assert arxiv.ledger is not None
    [real] = (
        await PipelineLedger(arxiv.ledger).documents.list_documents(source=f"arxiv:{ID}")
    ).items
    assert (real.title, real.filename, real.state) == (Paper(ID).title, f"{ID}v1.md", "completed")
    assert await arxiv.run(JOB, {"id": ID}) == [JOB]
    assert arxiv.result(JOB)["document_id"] == real.id


async def test_a_paper_that_has_failed_keeps_its_source(arxiv: Pipeline) -> None:
    await arxiv.run(JOB, {"id": ID})
    assert arxiv.ledger is not None
    real = await the_document(arxiv)
    await PipelineLedger(arxiv.ledger).documents.set_stage(real.id, "extract_text", "failed")
    key = "uploads/incoming/0123456789abcdef0123456789abcdef"
    arxiv.storage.put(key, b"# Lies\n\nA text of my own.")
    await arxiv.run("ingest_document", {"key": key, "source": f"arxiv:{ID}"})
    documents = (await PipelineLedger(arxiv.ledger).documents.list_documents()).items
    assert {each.id: each.source for each in documents if each.id == real.id} == {
        real.id: f"arxiv:{ID}"
    }
    assert [each.source for each in documents if each.id != real.id] == [None]


async def test_an_entry_in_the_payload_is_not_requested(arxiv: Pipeline, site: ArxivServer) -> None:
    outcome = await arxiv.one(JOB, {"query": "cat:physics.ao-ph"})
    assert isinstance(outcome, Next)
    [child] = outcome.jobs
    assert await arxiv.run(JOB, dict(child.payload)) == STAGES
    assert len(site.requests) == 1


async def test_the_pdf_is_read_with_full_text(arxiv: Pipeline, site: ArxivServer) -> None:
    await arxiv.run(JOB, {"id": ID})
    site.pdfs[f"{ID}v1"] = pdf([TEXT, TEXT])
    assert await arxiv.run(JOB, {"id": ID, "full_text": True}) == STAGES
    assert (await the_document(arxiv)).filename == f"{ID}v1.pdf"
    result = await whole_result(arxiv)
    assert (result["page_count"], result["media_type"]) == (2, "application/pdf")
    assert result["entry"]["full_text"] is True
    assert await arxiv.run(JOB, {"id": ID}) == [JOB]  # the abstract is less than that

    site.replace(ID, version=2)
    site.pdfs[f"{ID}v2"] = pdf([TEXT])
    assert await arxiv.run(JOB, {"id": ID}) == STAGES
    assert (await whole_result(arxiv))["page_count"] == 1


async def test_a_withdrawn_paper_is_taken_in_by_its_abstract(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    site.replace(ID, comment="This paper has been withdrawn by the authors")
    assert await arxiv.run(JOB, {"id": ID, "full_text": True}) == STAGES
    entry = (await whole_result(arxiv))["entry"]
    assert (entry["withdrawn"], entry["full_text"]) == (True, False)


async def test_a_pdf_elsewhere_is_not_fetched_from_our_own_network(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    """The link comes from outside; only the host of the settings may be one of ours."""
    with ArxivServer() as inside:
        inside.pdfs[f"{ID}v1"] = pdf()
        site.replace(ID, pdf_url=f"{inside.origin}/pdf/{ID}v1")
        with pytest.raises(FetchRefused, match="open internet"):
            await arxiv.one(JOB, {"id": ID, "full_text": True})
        assert inside.requests == []


async def test_a_page_in_the_place_of_a_pdf_is_tried_again(
    arxiv: Pipeline, site: ArxivServer
) -> None:
    entry = server.answer_well
    for page in (b"<!doctype html><p>being made", b"being made"):
        site.next(entry, server.says(page, "text/html"))
        with pytest.raises(InvalidSourceResponse, match="PDF of 1605"):
            await arxiv.one(JOB, {"id": ID, "full_text": True})
    site.next(entry, server.fails(500))
    with pytest.raises(FetchFailed, match="500"):
        await arxiv.one(JOB, {"id": ID, "full_text": True})
    site.next(entry, server.throttled(40))
    outcome = await arxiv.one(JOB, {"id": ID, "full_text": True})
    assert isinstance(outcome, Snooze)
    assert outcome.after == 40
