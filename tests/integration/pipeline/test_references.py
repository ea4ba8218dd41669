"""References are found in a document's text, parsed into fields, and tied to their citations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from switchyard.services.common.files.storage_keys import references_key, stage_key, upload_key
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.pipeline.citations.engines import engine_chain
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.text.page_process import PageProcess
from switchyard.services.pipeline.workers.references import reference_lists
from switchyard.services.pipeline.workers.references.reference_source import NoText
from switchyard.services.pipeline.workers.stage_outputs import MissingOutput
from switchyard.services.pipeline.workers.stages import EXTRACT
from tests.integration.pipeline.conftest import Pipeline
from tests.support.pdfs import pdf, scanned

BODY = "The tide rises twice a day [1]. Others disagree with this [1, 2]."
REFERENCE_LIST = """References
[1] R. Roe and J. Doe. On tides and their causes. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""


async def ingest_paper(pipeline: Pipeline, tmp_path: Path) -> str:
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([BODY, REFERENCE_LIST], title="On Tides"))
    await pipeline.run("ingest_document", {"path": str(path)})
    return str(pipeline.result("ingest_document")["document_id"])


def read_stored_references(pipeline: Pipeline, document_id: str) -> dict[str, Any]:
    return dict(json.loads(pipeline.storage.get(references_key(document_id))))


async def test_a_document_s_references_are_stored_with_their_citations(
    pipeline: Pipeline, tmp_path: Path
):
    document_id = await ingest_paper(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    stored = read_stored_references(pipeline, document_id)
    first, second = stored["references"]
    assert (first["label"], first["page"], first["year"]) == ("1", 2, 1999)
    assert first["title"] == "On tides and their causes"
    assert [person["family"] for person in first["authors"]] == ["Roe", "Doe"]
    assert second["title"] == "The sea"
    assert [(each["marker"], each["references"]) for each in stored["citations"]] == [
        ("[1]", [0]),
        ("[1, 2]", [0, 1]),
    ]
    assert stored["citations"][0]["sentence"] == "The tide rises twice a day [1]."
    assert pipeline.result("process_references")["references"] == 2


async def test_a_repeat_reuses_stored_outputs_and_writes_lost_ones(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document_id = await ingest_paper(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    before = read_stored_references(pipeline, document_id)
    pipeline.storage.put(references_key(document_id), b"{}")
    monkeypatch.setattr(reference_lists, "find_references", None)  # would fail if it were called
    monkeypatch.setattr(engine_chain, "parse_offline", None)
    await pipeline.run("process_references", {"document_id": document_id})
    assert pipeline.result("process_references")["reused"]
    assert read_stored_references(pipeline, document_id) == before


async def test_the_error_without_the_document_s_text_says_what_to_do(
    pipeline: Pipeline, tmp_path: Path
):
    document_id = await ingest_paper(pipeline, tmp_path)
    await pipeline.storage.delete_async(stage_key(document_id, EXTRACT.name))
    with pytest.raises(MissingOutput, match="ingest the document again"):
        await pipeline.run("process_references", {"document_id": document_id})


async def test_references_that_come_as_text_are_the_job_s_result(pipeline: Pipeline):
    texts = ["Kuhn, T. S. (1962). The structure of scientific revolutions. Chicago.", "\x00"]
    await pipeline.run("parse_references", {"references": texts})
    (first, second) = pipeline.result("parse_references")["references"]
    assert (first["title"], first["year"]) == ("The structure of scientific revolutions", 1962)
    assert second == {"text": "", "engine": "offline"}
    assert isinstance(pipeline.outcomes[-1][1], Done)


@pytest.mark.parametrize(
    "killed_step",
    [
        (reference_lists, "find_references"),
        (engine_chain, "parse_offline"),
        (reference_lists, "with_citations"),
    ],
)
async def test_a_job_repeated_after_a_crash_at_any_step_stores_the_same(
    pipeline: Pipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_step: tuple[Any, str],
):
    document_id = await ingest_paper(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    stored_list = read_stored_references(pipeline, document_id)
    other_path = tmp_path / "other.pdf"
    other_path.write_bytes(pdf([BODY, REFERENCE_LIST], title="On Tides, again"))
    await pipeline.run("ingest_document", {"path": str(other_path)})
    other_id = pipeline.result("ingest_document")["document_id"]

    def raise_memory_error(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*killed_step, raise_memory_error)
        with pytest.raises(MemoryError):
            await pipeline.run("process_references", {"document_id": other_id})
    await pipeline.run("process_references", {"document_id": other_id})
    repeated_list = read_stored_references(pipeline, other_id)
    assert repeated_list == stored_list | {
        "document_id": other_id,
        "content": repeated_list["content"],
    }


async def test_the_references_of_an_upload_are_the_job_s_result(pipeline: Pipeline):
    key = "uploads/incoming/one"
    pipeline.storage.put(key, pdf([BODY, REFERENCE_LIST]))
    await pipeline.run("process_references", {"key": key})
    result = pipeline.result("process_references")
    assert (result["references"], result["citations"]) == (2, 2)
    result_json = json.loads(pipeline.storage.get(result["result"]))
    assert [each["label"] for each in result_json["references"]] == ["1", "2"]
    assert result_json["references"][1]["title"] == "The sea"
    await pipeline.run("extract_references", {"text": f"{BODY}\n{REFERENCE_LIST}"})
    result_json = json.loads(pipeline.storage.get(pipeline.result("extract_references")["result"]))
    assert result_json["references"][1] == {
        "text": "A. Smith. The sea. Oxford University Press, Oxford, 2004.",
        "label": "2",
        "page": 1,
    }


async def test_a_list_of_references_is_split_at_line_ends_or_at_blank_lines(
    pipeline: Pipeline,
):
    first, second = "A. Smith. The sea. Oxford, 2004.", "R. Roe. On tides. Tides 3, 1999."
    for text in (f"{first}\n{second}\n", f"A. Smith. The sea.\nOxford, 2004.\n\n{second}"):
        pipeline.storage.put("uploads/incoming/list", text.encode())
        for payload in ({"text": text}, {"key": "uploads/incoming/list"}):
            await pipeline.run("parse_references", payload)
            key = pipeline.result("parse_references")["result"]
            references = json.loads(pipeline.storage.get(key))["references"]
            assert [each["title"] for each in references] == ["The sea", "On tides"]
            assert references[0]["year"] == 2004


async def test_a_file_of_pictures_has_no_references_without_ocr(pipeline: Pipeline):
    pipeline.storage.put("uploads/incoming/scan", scanned())
    with pytest.raises(NoText, match="POST /documents"):
        await pipeline.run("process_references", {"key": "uploads/incoming/scan"})


async def test_references_follow_the_pipeline_where_the_settings_say_so(
    pipeline: Pipeline, tmp_path: Path
):
    settings = pipeline.settings.model_copy(update={"document_references": True})
    pipeline_with_references = replace(pipeline, settings=settings)
    document_id = await ingest_paper(pipeline_with_references, tmp_path)
    assert [name for name, _ in pipeline_with_references.outcomes][-2:] == [
        "link_content",
        "process_references",
    ]
    assert len(read_stored_references(pipeline, document_id)["references"]) == 2
    assert pipeline.ledger is not None
    document = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert document is not None
    assert (document.state, document.current_stage) == ("completed", "link_content")
    assert document.completed_stages[-1] == "process_references"
    await pipeline_with_references.run("process_references", {"document_id": document_id})
    assert await PipelineLedger(pipeline.ledger).documents.get_document(document_id) == document


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
async def test_each_reference_keeps_its_place_on_the_page(
    pipeline: Pipeline, tmp_path: Path, extractor: str
):
    settings = pipeline.settings.model_copy(update={"pdf_extractor": extractor})
    extractor_pipeline = replace(pipeline, settings=settings)
    document_id = await ingest_paper(extractor_pipeline, tmp_path)
    await extractor_pipeline.run("process_references", {"document_id": document_id})
    first, second = read_stored_references(extractor_pipeline, document_id)["references"]
    (upper,), (lower,) = first["boxes"], second["boxes"]
    assert upper["page"] == lower["page"] == 2
    with pymupdf.open(tmp_path / "paper.pdf") as document:
        (title_box,) = document[1].search_for("On tides and their causes")
    assert upper["x"] <= title_box.x0 < title_box.x1 <= upper["x"] + upper["width"]
    middle = (title_box.y0 + title_box.y1) / 2
    assert upper["y"] < middle < upper["y"] + upper["height"]
    assert upper["y"] + upper["height"] <= lower["y"] + 2


async def test_without_the_pdf_there_are_references_and_no_boxes(
    pipeline: Pipeline, tmp_path: Path
):
    document_id = await ingest_paper(pipeline, tmp_path)
    pipeline.storage.put(upload_key(document_id, "application/pdf"), b"%PDF-1.7 and no more")
    await pipeline.run("process_references", {"document_id": document_id})
    references = read_stored_references(pipeline, document_id)["references"]
    assert len(references) == 2
    assert not any("boxes" in each for each in references)


TEXT_WITH_RAISED_NUMBERS = """Jane Smith<sup>1</sup>, John Doe<sup>1,2</sup>
<sup>1</sup> Institute of Tides, Kiel
<sup>2</sup> Department of the Sea, Oslo
The tide rises twice a day.<sup>1</sup> Others disagree<sup>2,4</sup> and were answered.\
<sup>1–3</sup> The basin has 5 km<sup>2</sup> and \
10<sup>3</sup> waves, which grow as x<sup>2</sup> does."""
NUMBERED_LIST = """References
1. Roe R. On tides and their causes. J Phys. 1999;12:33-40.
2. Smith A. The sea. Oxford: Oxford University Press; 2004.
3. Doe J. The moon and the sea. Nature. 2001;3:1-2.
4. Poe E. A storm on the sea. Science. 2002;4:1-9."""


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
async def test_raised_numbers_are_recognised_by_size_and_place_and_tied_to_the_list(
    pipeline: Pipeline, tmp_path: Path, extractor: str
):
    document = pymupdf.open(stream=pdf([REFERENCE_LIST]), filetype="pdf")
    document.delete_page(0)
    page = document.new_page()
    for number, paragraph in enumerate(TEXT_WITH_RAISED_NUMBERS.splitlines()):
        page.insert_htmlbox(pymupdf.Rect(50, 100 + 50 * number, 500, 300 + 50 * number), paragraph)
    document.new_page().insert_text((50, 100), NUMBERED_LIST.splitlines(), fontsize=11)
    path = tmp_path / "paper.pdf"
    path.write_bytes(bytes(document.tobytes()))
    settings = pipeline.settings.model_copy(update={"pdf_extractor": extractor})
    extractor_pipeline = replace(pipeline, settings=settings)
    await extractor_pipeline.run("ingest_document", {"path": str(path)})
    document_id = str(extractor_pipeline.result("ingest_document")["document_id"])
    await extractor_pipeline.run("process_references", {"document_id": document_id})
    stored = read_stored_references(extractor_pipeline, document_id)
    assert [each["label"] for each in stored["references"]] == ["1", "2", "3", "4"]
    assert [(each["marker"], each["references"]) for each in stored["citations"]] == [
        ("¹", [0]),
        ("²,⁴", [1, 3]),
        ("¹–³", [0, 1, 2]),
    ]
    assert stored["citations"][0]["sentence"] == "The tide rises twice a day.¹"
    text = json.loads(pipeline.storage.get(stage_key(document_id, EXTRACT.name)))["result"]
    assert "10³ waves" in text["pages"][0]["text"]


@pytest.mark.parametrize("arrival", ["as an upload", "as a document"])
async def test_no_page_is_read_twice_for_the_boxes(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrival: str
):
    pages_read: list[int] = []
    original_run = PageProcess.run

    def run(process: PageProcess, number: int, *args: Any, **kwargs: Any) -> Any:
        pages_read.append(number)
        return original_run(process, number, *args, **kwargs)

    monkeypatch.setattr(PageProcess, "run", run)
    update = {"document_references": True}
    pipeline_with_references = replace(
        pipeline, settings=pipeline.settings.model_copy(update=update)
    )
    if arrival == "as an upload":
        pipeline_with_references.storage.put("uploads/incoming/paper", pdf([BODY, REFERENCE_LIST]))
        await pipeline_with_references.run("process_references", {"key": "uploads/incoming/paper"})
        result_json = json.loads(
            pipeline_with_references.storage.get(
                pipeline_with_references.result("process_references")["result"]
            )
        )
    else:
        result_json = read_stored_references(
            pipeline_with_references, await ingest_paper(pipeline_with_references, tmp_path)
        )
    assert len(result_json["references"][0]["boxes"]) == 1
    assert pages_read == [1, 2]
    remaining_keys = [
        stored.key async for stored in pipeline_with_references.storage.list_async("intermediate")
    ]
    assert not [key for key in remaining_keys if "/pages/" in key]
