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
LISTED = """References
[1] R. Roe and J. Doe. On tides and their causes. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""


async def cited(pipeline: Pipeline, tmp_path: Path) -> str:
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([BODY, LISTED], title="On Tides"))
    await pipeline.run("ingest_document", {"path": str(path)})
    return str(pipeline.result("ingest_document")["document_id"])


def stored_json(pipeline: Pipeline, document_id: str) -> dict[str, Any]:
    return dict(json.loads(pipeline.storage.get(references_key(document_id))))


async def test_a_document_s_references_and_where_they_are_cited(pipeline: Pipeline, tmp_path: Path):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    stored = stored_json(pipeline, document_id)
    first, second = stored["references"]
    assert (first["label"], first["page"], first["year"]) == ("1", 2, 1999)
    assert first["title"] == "On tides and their causes"
    assert [person["family"] for person in first["authors"]] == ["Roe", "Doe"]
    assert second["title"] == "The sea"
    assert [(one["marker"], one["references"]) for one in stored["citations"]] == [
        ("[1]", [0]),
        ("[1, 2]", [0, 1]),
    ]
    assert stored["citations"][0]["sentence"] == "The tide rises twice a day [1]."
    assert pipeline.result("process_references")["references"] == 2


async def test_a_repeat_reuses_stored_outputs_and_writes_lost_ones(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    before = stored_json(pipeline, document_id)
    pipeline.storage.put(references_key(document_id), b"{}")
    monkeypatch.setattr(reference_lists, "find_references", None)  # would fail if it were called
    monkeypatch.setattr(engine_chain, "parse_offline", None)
    await pipeline.run("process_references", {"document_id": document_id})
    assert pipeline.result("process_references")["reused"]
    assert stored_json(pipeline, document_id) == before


async def test_the_error_without_the_document_s_text_says_what_to_do(
    pipeline: Pipeline, tmp_path: Path
):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.storage.delete_async(stage_key(document_id, EXTRACT.name))
    with pytest.raises(MissingOutput, match="ingest the document again"):
        await pipeline.run("process_references", {"document_id": document_id})


async def test_references_that_come_as_text_are_the_job_s_result(pipeline: Pipeline):
    texts = ["Kuhn, T. S. (1962). The structure of scientific revolutions. Chicago.", "\x00"]
    await pipeline.run("parse_references", {"references": texts})
    (first, second) = pipeline.result("parse_references")["references"]
    assert (first["title"], first["year"]) == ("The structure of scientific revolutions", 1962)
    assert second == {"text": "", "engine": "offline"}
    assert isinstance(pipeline.ran[-1][1], Done)


@pytest.mark.parametrize(
    "broken",
    [
        (reference_lists, "find_references"),
        (engine_chain, "parse_offline"),
        (reference_lists, "with_citations"),
    ],
)
async def test_whatever_is_killed_in_the_middle_the_repeat_makes_the_same(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[Any, str]
):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    stored_list = stored_json(pipeline, document_id)
    other = tmp_path / "other.pdf"
    other.write_bytes(pdf([BODY, LISTED], title="On Tides, again"))
    await pipeline.run("ingest_document", {"path": str(other)})
    other_id = pipeline.result("ingest_document")["document_id"]

    def dies(*args: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(*broken, dies)
        with pytest.raises(MemoryError):
            await pipeline.run("process_references", {"document_id": other_id})
    await pipeline.run("process_references", {"document_id": other_id})
    again = stored_json(pipeline, other_id)
    assert again == stored_list | {"document_id": other_id, "content": again["content"]}


async def test_the_references_of_an_upload_are_the_job_s(pipeline: Pipeline):
    key = "uploads/incoming/one"
    pipeline.storage.put(key, pdf([BODY, LISTED]))
    await pipeline.run("process_references", {"key": key})
    result = pipeline.result("process_references")
    assert (result["references"], result["citations"]) == (2, 2)
    result_json = json.loads(pipeline.storage.get(result["result"]))
    assert [each["label"] for each in result_json["references"]] == ["1", "2"]
    assert result_json["references"][1]["title"] == "The sea"
    await pipeline.run("extract_references", {"text": f"{BODY}\n{LISTED}"})
    result_json = json.loads(pipeline.storage.get(pipeline.result("extract_references")["result"]))
    assert result_json["references"][1] == {
        "text": "A. Smith. The sea. Oxford University Press, Oxford, 2004.",
        "label": "2",
        "page": 1,
    }


async def test_a_list_of_references_has_one_to_a_line_or_blank_lines_between_them(
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
    following = replace(pipeline, settings=settings)
    document_id = await cited(following, tmp_path)
    assert [name for name, _ in following.ran][-2:] == ["link_content", "process_references"]
    assert len(stored_json(pipeline, document_id)["references"]) == 2
    assert pipeline.ledger is not None
    document = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert document is not None
    assert (document.state, document.current_stage) == ("completed", "link_content")
    assert document.completed_stages[-1] == "process_references"
    await following.run("process_references", {"document_id": document_id})
    assert await PipelineLedger(pipeline.ledger).documents.get_document(document_id) == document


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
async def test_each_reference_keeps_its_place_on_the_page(
    pipeline: Pipeline, tmp_path: Path, extractor: str
):
    settings = pipeline.settings.model_copy(update={"pdf_extractor": extractor})
    reads = replace(pipeline, settings=settings)
    document_id = await cited(reads, tmp_path)
    await reads.run("process_references", {"document_id": document_id})
    first, second = stored_json(reads, document_id)["references"]
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
    document_id = await cited(pipeline, tmp_path)
    pipeline.storage.put(upload_key(document_id, "application/pdf"), b"%PDF-1.7 and no more")
    await pipeline.run("process_references", {"document_id": document_id})
    references = stored_json(pipeline, document_id)["references"]
    assert len(references) == 2
    assert not any("boxes" in each for each in references)


RAISED = """Jane Smith<sup>1</sup>, John Doe<sup>1,2</sup>
<sup>1</sup> Institute of Tides, Kiel
<sup>2</sup> Department of the Sea, Oslo
The tide rises twice a day.<sup>1</sup> Others disagree<sup>2,4</sup> and were answered.\
<sup>1–3</sup> The basin has 5 km<sup>2</sup> and \
10<sup>3</sup> waves, which grow as x<sup>2</sup> does."""
RAISED_LIST = """References
1. Roe R. On tides and their causes. J Phys. 1999;12:33-40.
2. Smith A. The sea. Oxford: Oxford University Press; 2004.
3. Doe J. The moon and the sea. Nature. 2001;3:1-2.
4. Poe E. A storm on the sea. Science. 2002;4:1-9."""


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
async def test_raised_numbers_are_recognised_by_size_and_place_and_tied_to_the_list(
    pipeline: Pipeline, tmp_path: Path, extractor: str
):
    opened = pymupdf.open(stream=pdf([LISTED]), filetype="pdf")
    opened.delete_page(0)
    page = opened.new_page()
    for number, paragraph in enumerate(RAISED.splitlines()):
        page.insert_htmlbox(pymupdf.Rect(50, 100 + 50 * number, 500, 300 + 50 * number), paragraph)
    opened.new_page().insert_text((50, 100), RAISED_LIST.splitlines(), fontsize=11)
    path = tmp_path / "paper.pdf"
    path.write_bytes(bytes(opened.tobytes()))
    settings = pipeline.settings.model_copy(update={"pdf_extractor": extractor})
    one = replace(pipeline, settings=settings)
    await one.run("ingest_document", {"path": str(path)})
    document_id = str(one.result("ingest_document")["document_id"])
    await one.run("process_references", {"document_id": document_id})
    stored = stored_json(one, document_id)
    assert [each["label"] for each in stored["references"]] == ["1", "2", "3", "4"]
    assert [(each["marker"], each["references"]) for each in stored["citations"]] == [
        ("¹", [0]),
        ("²,⁴", [1, 3]),
        ("¹–³", [0, 1, 2]),
    ]
    assert stored["citations"][0]["sentence"] == "The tide rises twice a day.¹"
    text = json.loads(pipeline.storage.get(stage_key(document_id, EXTRACT.name)))["result"]
    assert "10³ waves" in text["pages"][0]["text"]


@pytest.mark.parametrize("comes", ["as an upload", "as a document"])
async def test_no_page_is_read_twice_for_the_boxes(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str
):
    read: list[int] = []
    inner = PageProcess.run

    def run(process: PageProcess, number: int, *args: Any, **kwargs: Any) -> Any:
        read.append(number)
        return inner(process, number, *args, **kwargs)

    monkeypatch.setattr(PageProcess, "run", run)
    update = {"document_references": True}
    one = replace(pipeline, settings=pipeline.settings.model_copy(update=update))
    if comes == "as an upload":
        one.storage.put("uploads/incoming/paper", pdf([BODY, LISTED]))
        await one.run("process_references", {"key": "uploads/incoming/paper"})
        result_json = json.loads(one.storage.get(one.result("process_references")["result"]))
    else:
        result_json = stored_json(one, await cited(one, tmp_path))
    assert len(result_json["references"][0]["boxes"]) == 1
    assert read == [1, 2]
    remaining_keys = [stored.key async for stored in one.storage.list_async("intermediate")]
    assert not [key for key in remaining_keys if "/pages/" in key]
