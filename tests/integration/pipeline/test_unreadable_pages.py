"""Pages whose text is missing or differs from their picture go to OCR; results name pages that stay
unreadable."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.pipeline.text.ocr import OcrNotInstalled, read_picture
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import ingest_file
from tests.integration.pipeline.scans import SLIPS, read_page_texts
from tests.support.pdfs import TEXT, pdf, scan, slips

by_both_extractors = pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])

LONG_TEXT = (
    "The keeper of the light climbed the stairs every evening. He trimmed the wick and filled the "
    "lamp, and wrote down the wind. In winter the waves reached the gallery, and the whole tower "
    "trembled, but the flame behind the glass never once went out in all of those years."
)


def make_pdf_without_unicode(text: str, *, readable_text: str = "", size: float = 220) -> bytes:
    """Return a PDF with a page of text, and a page whose font does not say which letters its glyphs
    are."""
    document = (
        pymupdf.open(stream=slips([readable_text]), filetype="pdf")
        if readable_text
        else pymupdf.open()
    )
    page = document.new_page(width=size, height=size)
    writer = pymupdf.TextWriter(page.rect)
    box = pymupdf.Rect(10, 20, size - 10, size - 20)
    writer.fill_textbox(box, text, font=pymupdf.Font("tiro"), fontsize=12)
    writer.write_text(page)
    for xref in range(1, document.xref_length()):
        if document.xref_get_key(xref, "ToUnicode")[0] != "null":
            document.xref_set_key(xref, "ToUnicode", "null")
    return bytes(document.tobytes())


def draw_on_scan(text: str, draw: Callable[[Any], None]) -> bytes:
    """Return a scanned slip with text drawn upon it."""
    document = pymupdf.open(stream=scan(slips([text])), filetype="pdf")
    draw(document[0])
    return bytes(document.tobytes())


@by_both_extractors
def test_a_font_without_a_map_to_unicode_makes_its_page_unreadable(extractor: ExtractorName):
    pdf_text = read_pdf(
        make_pdf_without_unicode(LONG_TEXT, readable_text=SLIPS[0]), extractor=extractor
    )
    assert [page.is_unreadable for page in pdf_text.pages] == [False, True]
    assert pdf_text.pages[0].text == SLIPS[0]
    assert not pdf_text.needs_ocr


@by_both_extractors
def test_codes_that_are_letters_are_read_although_the_font_does_not_say_so(
    extractor: ExtractorName,
):
    document = pymupdf.open()
    page = document.new_page()
    glyph_names = " ".join(f"/g{code}" for code in range(32, 127))
    glyph, content = document.get_new_xref(), document.get_new_xref()
    procs = " ".join(f"/g{code} {glyph} 0 R" for code in range(32, 127))
    font = document.get_new_xref()
    document.update_object(glyph, "<<>>")
    document.update_stream(glyph, b"600 0 0 0 500 700 d1 0 0 500 700 re f")
    document.update_object(
        font,
        "<</Type/Font/Subtype/Type3/FontBBox[0 0 600 800]/FontMatrix[.001 0 0 .001 0 0]"
        f"/FirstChar 32/LastChar 126/Widths[{'600 ' * 95}]/Resources<<>>/CharProcs<<{procs}>>"
        f"/Encoding<</Type/Encoding/Differences[32 {glyph_names}]>>>>",
    )
    document.update_object(content, "<<>>")
    document.update_stream(content, f"BT /F 11 Tf 50 700 Td ({TEXT}) Tj ET".encode())
    document.xref_set_key(page.xref, "Resources", f"<</Font<</F {font} 0 R>>>>")
    document.xref_set_key(page.xref, "Contents", f"{content} 0 R")
    (page_text,) = read_pdf(bytes(document.tobytes()), extractor=extractor).pages
    assert (page_text.text, page_text.is_unreadable) == (TEXT, False)


@by_both_extractors
@pytest.mark.parametrize(
    "typed",
    ["7", "2021 3 31", "This content downloaded from 192.0.2.7. All use subject to the terms."],
)
def test_a_scan_stays_a_scan_whatever_is_stamped_upon_it(extractor: ExtractorName, typed: str):
    content = draw_on_scan(LONG_TEXT, lambda page: page.insert_text((20, 210), typed, fontsize=6))
    (page,) = read_pdf(content, extractor=extractor).pages
    assert page.is_scan
    assert page.text == typed
    assert read_pdf(content, extractor=extractor).needs_ocr


@by_both_extractors
@pytest.mark.parametrize("text_layer", ["without ink", "beneath the picture", "shown"])
def test_a_picture_whose_text_is_on_the_page_is_not_sent_to_ocr(
    extractor: ExtractorName, text_layer: str
):
    if text_layer == "beneath the picture":
        document = pymupdf.open(stream=slips([LONG_TEXT[:58]]), filetype="pdf")
        picture = pymupdf.open(stream=scan(slips([LONG_TEXT[:58]])), filetype="pdf")[0].get_pixmap()
        document[0].insert_image(document[0].rect, pixmap=picture)
        content = bytes(document.tobytes())
    elif text_layer == "without ink":
        box = pymupdf.Rect(10, 20, 210, 200)
        content = draw_on_scan(
            LONG_TEXT[:58],
            lambda page: page.insert_textbox(box, LONG_TEXT[:58], fontsize=12, render_mode=3),
        )
    else:  # a photograph for a background
        document = pymupdf.open()
        page = document.new_page()
        pixmap = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 40, 40))
        pixmap.clear_with(250)
        page.insert_image(page.rect, pixmap=pixmap, keep_proportion=False)
        page.insert_textbox(pymupdf.Rect(50, 50, 545, 790), f"{LONG_TEXT} " * 4, fontsize=12)
        content = bytes(document.tobytes())
    (page_text,) = read_pdf(content, extractor=extractor).pages
    assert not page_text.is_scan
    assert page_text.text.startswith(LONG_TEXT[:40])


async def test_a_scan_with_a_typed_date_is_read_and_keeps_the_date_once(
    pipeline: Pipeline, tmp_path: Path
):
    content = draw_on_scan(
        SLIPS[0], lambda page: page.insert_text((40, 150), "2021 3 31", fontsize=12)
    )
    document_id = await ingest_file(pipeline, tmp_path, "dated.pdf", content)
    (text,) = read_page_texts(pipeline, document_id)
    assert text.split() == [*SLIPS[0].split(), "2021", "3", "31"]
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert result["unreadable_pages"] == []


def test_typed_text_that_ocr_does_not_see_is_kept():
    import numpy as np

    from switchyard.services.pipeline.text.layout import Line

    page = np.full((400, 400, 3), 255, np.uint8)
    typed = [Line(40, 300, 200, 320, "Received 31 March", 20)]
    assert read_picture(page, "no/model.onnx", typed).text == "Received 31 March"


async def test_unreadable_pages_are_read_by_ocr(pipeline: Pipeline, tmp_path: Path):
    content = make_pdf_without_unicode(LONG_TEXT[:58], readable_text=SLIPS[0])
    document_id = await ingest_file(pipeline, tmp_path, "coded.pdf", content)
    assert pipeline.result("ocr_pdf")["pages_read"] == 1
    assert read_page_texts(pipeline, document_id) == [SLIPS[0], LONG_TEXT[:57]]
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert result["unreadable_pages"] == []


@pytest.mark.parametrize("reason", ["not installed", "switched off"])
async def test_the_result_names_the_pages_that_stay_unreadable(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
):
    def raise_not_installed(*_: Any) -> None:
        raise OcrNotInstalled("install switchyard[ocr]")

    monkeypatch.setattr("switchyard.services.pipeline.text.ocr.require_ocr", raise_not_installed)
    if reason == "switched off":
        update = {"ocr_scanned_pages": False}
        pipeline = replace(pipeline, settings=pipeline.settings.model_copy(update=update))
    content = make_pdf_without_unicode(LONG_TEXT, readable_text=SLIPS[0])
    document_id = await ingest_file(pipeline, tmp_path, "coded.pdf", content)
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert (result["state"], result["unreadable_pages"]) == ("completed", [2])


def test_a_page_without_any_text_is_not_unreadable():
    assert not any(page.is_unreadable for page in read_pdf(pdf([TEXT, ""])).pages)


def test_a_typed_number_is_not_taken_for_a_part_of_a_longer_one():
    from switchyard.services.pipeline.text.layout import Line
    from switchyard.services.pipeline.text.ocr import _merge_typed

    read_line = Line(0, 0, 400, 20, "20211 8035024 31", 20)
    typed = [Line(x, 0, x + 30, 20, text, 20) for x, text in ((0, "2021"), (90, "3"), (370, "31"))]
    assert [line.text for line in _merge_typed([read_line], typed)] == [read_line.text, "2021", "3"]
