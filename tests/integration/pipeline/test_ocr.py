"""Pages that are pictures get their text from OCR, and the document continues with it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymupdf
import pytest
from PIL import Image

from switchyard.services.common.files.errors import PageTooCostly, UnsupportedDocument
from switchyard.services.common.files.storage_keys import page_key, result_key, stage_key
from switchyard.services.pipeline.index.chunk_search import search
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.ledger.documents import DocumentRepository
from switchyard.services.pipeline.text.ocr import OcrNotInstalled, UnknownLanguage
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from switchyard.services.pipeline.text.plain_text import words
from switchyard.services.pipeline.workers import ocr as ocr_worker
from switchyard.services.pipeline.workers.ocr import NoTextFound
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import ingest_file
from tests.integration.pipeline.scans import (
    SLIPS,
    convert_to_image,
    draw_page,
    make_pdf_with_scans,
    read_page_texts,
)
from tests.support.pdfs import TEXT, pdf, scan, scanned, slips


async def test_a_scan_is_read_and_found_by_its_words(pipeline: Pipeline, tmp_path: Path):
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    assert [name for name, _ in pipeline.outcomes] == [
        "ingest_document",
        "extract_text",
        "await_ocr",
        "ocr_pdf",
        "summarize_content",
        "embed_content",
        "classify_document",
        "link_content",
    ]
    assert read_page_texts(pipeline, document_id) == list(SLIPS)
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    assert stored.state == "completed"
    assert "ocr_pdf" in stored.completed_stages
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert (result["title"], result["page_count"]) == (SLIPS[0], 3)
    assert result["word_count"] == sum(len(words(each)) for each in SLIPS)
    async with open_index(pipeline.settings) as store, store.open_active() as (index, embedder):
        hits = await search(index, embedder, "lantern harbour", 3)
    assert hits[0].document_id == document_id


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("TIFF", "image/tiff"), ("WEBP", "image/webp")],
)
async def test_an_image_is_a_document(
    pipeline: Pipeline, tmp_path: Path, kind: str, media_type: str
):
    content = convert_to_image(slips(SLIPS[:1]), kind)
    document_id = await ingest_file(pipeline, tmp_path, f"slip.{kind.lower()}", content)
    assert read_page_texts(pipeline, document_id) == [SLIPS[0]]
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    assert (stored.state, stored.media_type) == ("completed", media_type)


@pytest.mark.long
async def test_every_page_of_a_tiff_is_a_page_of_the_document(pipeline: Pipeline, tmp_path: Path):
    first_picture, *other_pictures = [
        Image.fromarray(draw_page(slips(SLIPS), n)) for n in (1, 2, 3)
    ]
    buffer = io.BytesIO()
    first_picture.save(buffer, "TIFF", save_all=True, append_images=other_pictures)
    document_id = await ingest_file(pipeline, tmp_path, "slips.tif", buffer.getvalue())
    assert read_page_texts(pipeline, document_id) == list(SLIPS)


async def test_scanned_pages_of_a_document_with_text_are_read_and_put_in_their_places(
    pipeline: Pipeline, tmp_path: Path, ocr_states: list[str]
):
    content = make_pdf_with_scans(SLIPS, scanned=[2], blank_before=[3])
    document_id = await ingest_file(pipeline, tmp_path, "mixed.pdf", content)
    assert [name for name, _ in pipeline.outcomes][1:5] == [
        "extract_text",
        "await_ocr",
        "ocr_pdf",
        "summarize_content",
    ]
    assert pipeline.result("ocr_pdf")["pages_read"] == 1
    assert read_page_texts(pipeline, document_id) == [SLIPS[0], SLIPS[1], "", SLIPS[2]]
    assert ocr_states == ["needs_ocr", "recognizing"]
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert result["pages_without_text"] == [3]
    payload = {"document_id": document_id}
    await pipeline.run("extract_text", payload)
    assert [name for name, _ in pipeline.outcomes][1] == "summarize_content"
    await pipeline.run("extract_text", payload | {"force": True})
    assert pipeline.result("ocr_pdf")["pages_read"] == 1  # pages with text keep it
    await pipeline.run("ocr_pdf", payload | {"force": True}, lane="vlm_ocr")
    assert pipeline.result("ocr_pdf")["pages_read"] == 4


@pytest.fixture
def ocr_states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the states of documents that concern OCR, in their order."""
    states: list[str] = []
    original = DocumentRepository.set_stage

    async def set_stage(
        documents: DocumentRepository, document_id: str, stage: str, state: str, **fields: Any
    ):
        if state in {"needs_ocr", "recognizing"} and state not in states:
            states.append(state)
        await original(documents, document_id, stage, state, **fields)

    monkeypatch.setattr(DocumentRepository, "set_stage", set_stage)
    return states


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
def test_a_scan_is_a_page_without_words_that_pictures_cover_by_more_than_half(
    extractor: ExtractorName,
):
    pixmap = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 40, 40))
    document = pymupdf.open(stream=pdf([TEXT, "", TEXT]), filetype="pdf")  # the second one is blank
    document[2].insert_image(document[2].rect, pixmap=pixmap)  # a background
    width, height = document[0].rect.width, document[0].rect.height
    for boxes in (
        [(0, 0, width, height * 0.45)],
        [(0, 0, width, height * 0.55)],
        [(0, height * part, width, height * (part + 0.2)) for part in (0, 0.2, 0.4)],
        [(-10 * width, -height, width * 0.3, height)],
    ):
        page = document.new_page(width=width, height=height)
        for box in boxes:
            page.insert_image(pymupdf.Rect(box), pixmap=pixmap, keep_proportion=False)
    pdf_text = read_pdf(bytes(document.tobytes()), extractor=extractor)
    assert [page.number for page in pdf_text.pages if page.is_scan] == [5, 6]


async def test_blank_pages_do_not_send_a_document_to_ocr_and_a_setting_keeps_scans_from_it(
    pipeline: Pipeline, tmp_path: Path
):
    await ingest_file(pipeline, tmp_path, "blank.pdf", pdf([TEXT, "", TEXT]))
    assert [name for name, _ in pipeline.outcomes][2] == "summarize_content"
    update = {"ocr_scanned_pages": False}
    pipeline_without_ocr = replace(pipeline, settings=pipeline.settings.model_copy(update=update))
    document_id = await ingest_file(
        pipeline_without_ocr, tmp_path, "mixed.pdf", make_pdf_with_scans(SLIPS, scanned=[2])
    )
    assert [name for name, _ in pipeline_without_ocr.outcomes][2] == "summarize_content"
    await pipeline_without_ocr.run("ocr_pdf", {"document_id": document_id}, lane="vlm_ocr")
    assert read_page_texts(pipeline_without_ocr, document_id) == list(SLIPS)


async def test_without_ocr_a_document_continues_with_the_text_that_it_has(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def raise_not_installed(*_: Any) -> None:
        raise OcrNotInstalled("install switchyard[ocr]")

    monkeypatch.setattr("switchyard.services.pipeline.text.ocr.require_ocr", raise_not_installed)
    document_id = await ingest_file(
        pipeline, tmp_path, "mixed.pdf", make_pdf_with_scans(SLIPS, scanned=[2])
    )
    assert pipeline.result("ocr_pdf") == {
        "document_id": document_id,
        "pages_left": 1,
        "error": "install switchyard[ocr]",
    }
    assert pipeline.outcomes[-1][0] == "link_content"
    with pytest.raises(OcrNotInstalled):
        await ingest_file(pipeline, tmp_path, "scan.pdf", scan(slips(SLIPS[:1])))


async def test_a_document_that_was_read_is_not_read_again(pipeline: Pipeline, tmp_path: Path):
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    await pipeline.run("extract_text", {"document_id": document_id})
    assert [name for name, _ in pipeline.outcomes][:2] == ["extract_text", "summarize_content"]
    assert pipeline.result("extract_text")["reused"]


@pytest.mark.long
async def test_the_error_for_pictures_without_words_says_so(pipeline: Pipeline, tmp_path: Path):
    with pytest.raises(NoTextFound, match="no words on the document's 2 pages"):
        await ingest_file(pipeline, tmp_path, "blank.pdf", scanned())
    document_id = str(pipeline.result("ingest_document")["document_id"])
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    assert (stored.state, stored.current_stage) == ("failed", "ocr_pdf")


async def test_a_picture_much_wider_than_high_has_no_words(pipeline: Pipeline, tmp_path: Path):
    buffer = io.BytesIO()
    striped = Image.new("1", (200_000, 100))
    striped.paste(1, (0, 0, 1_000, 100))
    striped.save(buffer, "PNG")
    with pytest.raises(NoTextFound, match=r"no words on the document's page$"):
        await ingest_file(pipeline, tmp_path, "strip.png", buffer.getvalue())


async def test_a_picture_that_is_cut_off_fails_for_that_reason(pipeline: Pipeline, tmp_path: Path):
    png = io.BytesIO()
    Image.effect_noise((300, 200), 50).save(png, "PNG")
    cut_png = png.getvalue()[: len(png.getvalue()) // 2]
    with pytest.raises(NoTextFound, match=r"1 can't be read: .* image file is truncated"):
        await ingest_file(pipeline, tmp_path, "half.png", cut_png)


async def test_an_error_of_one_page_that_stops_the_job_is_raised_as_it_is(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def recognise(reader: Any, number: int) -> dict[str, Any]:
        raise OcrNotInstalled("this worker has no OCR")

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognise)
    with pytest.raises(OcrNotInstalled):
        await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))


async def test_a_page_that_can_not_be_read_does_not_hold_up_the_others(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = ocr_worker._PageReader._recognise

    async def recognise(reader: Any, number: int) -> dict[str, Any]:
        if number == 2:
            return {"text": None, "error": "MemoryError: too much"}
        return await original(reader, number)

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognise)
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", scan(slips(SLIPS)))
    assert read_page_texts(pipeline, document_id) == [SLIPS[0], "", SLIPS[2]]
    assert pipeline.result("ocr_pdf")["broken_pages"] == [2]
    page_result = json.loads(pipeline.storage.get(page_key(document_id, "ocr_pdf", 2)))
    assert page_result["error"] == "MemoryError: too much"
    extracted = json.loads(pipeline.storage.get(stage_key(document_id, "extract_text")))
    assert page_result["content"] == extracted["content"]


async def test_only_some_pages_of_a_document_of_costly_pages_are_tried(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tried: list[int] = []

    def read_page(data: Any, number: int, *arguments: Any) -> Any:
        tried.append(number)
        raise PageTooCostly(f"page {number} of the PDF takes more than 10 s of processor time")

    document_id = await ingest_file(pipeline, tmp_path, "long.pdf", slips([SLIPS[0]] * 8))
    monkeypatch.setattr("switchyard.services.pipeline.text.ocr.read_page", read_page)
    monkeypatch.setattr(ocr_worker._PageReader, "_concurrency", lambda _: 1)
    payload = {"document_id": document_id, "force": True}
    await pipeline.run("ocr_pdf", payload, lane="vlm_ocr")
    assert tried == [1, 2, 3, 4, 5]
    page_result = json.loads(pipeline.storage.get(page_key(document_id, "ocr_pdf", 8)))
    assert page_result["error"] == "not drawn, as 5 pages of the document take too long"


async def test_a_page_that_can_not_be_read_again_keeps_its_text(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Pages 2 and 3 can't be read. Page 1 is read in spite of an error, and shows its new text."""

    async def recognise(reader: Any, number: int) -> dict[str, Any]:
        text = "What stands there" if number == 1 else None
        return {"text": text, "error": "TimeoutError: too slow"}

    monkeypatch.setattr(ocr_worker._PageReader, "_recognise", recognise)
    document_id = await ingest_file(pipeline, tmp_path, "slips.pdf", slips(SLIPS))
    await pipeline.run("ocr_pdf", {"document_id": document_id, "force": True}, lane="vlm_ocr")
    assert read_page_texts(pipeline, document_id) == ["What stands there", *SLIPS[1:]]
    assert pipeline.result("ocr_pdf")["broken_pages"] == []


async def test_plain_text_has_no_pages_for_ocr(pipeline: Pipeline, tmp_path: Path):
    document_id = await ingest_file(pipeline, tmp_path, "slip.txt", SLIPS[0].encode())
    payload = {"document_id": document_id, "force": True}
    with pytest.raises(UnsupportedDocument, match="plain text has no pages"):
        await pipeline.run("ocr_pdf", payload, lane="vlm_ocr")
    assert read_page_texts(pipeline, document_id) == [SLIPS[0]]


async def test_a_language_without_a_model_is_refused(pipeline: Pipeline, tmp_path: Path):
    document_id = await ingest_file(pipeline, tmp_path, "slip.pdf", pdf(["some text"]))
    payload = {"document_id": document_id, "language": "ar", "force": True}
    with pytest.raises(UnknownLanguage, match=r"ar\.onnx .* JOBS_OCR_MODELS"):
        await pipeline.run("ocr_pdf", payload, lane="vlm_ocr")
