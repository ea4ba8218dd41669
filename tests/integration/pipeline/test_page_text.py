"""Pages become Markdown in the order in which people read them, by either extractor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pymupdf
import pytest

from switchyard.services.common.files.errors import CorruptDocument, EncryptedDocument
from switchyard.services.engine.jobs.outcomes import Next
from switchyard.services.pipeline.text.pdf import ExtractorName, draw_page_with_text, read_pdf
from switchyard.services.pipeline.text.pdf_pages import Limits
from tests.integration.pipeline.conftest import Pipeline
from tests.support.pdfs import TEXT, encrypted, pdf

EXTRACTORS: tuple[ExtractorName, ...] = ("pymupdf", "pypdfium2")
by_both_extractors = pytest.mark.parametrize("extractor", EXTRACTORS)

LEFT_TEXT = (
    "The keeper of the light climbed the stairs every evening. He trimmed the wick and filled "
    "the lamp, and wrote down the wind. In winter the waves reached the gallery, and the whole "
    "tower trembled, but the flame behind the glass never once went out in those years."
)
RIGHT_TEXT = (
    "On the mainland a baker rose at three. Her oven was older than the street, and the first "
    "loaves were for the fishermen. She knew each of them by the sound of his boots, and which "
    "of them would not come back from the autumn storms when the boats were counted."
)


def make_pdf(draw: Callable[[Any, int], None], pages: int = 1) -> bytes:
    document = pymupdf.open()
    for number in range(1, pages + 1):
        draw(document.new_page(), number)
    return bytes(document.tobytes(no_new_id=True))


def draw_text(page: Any, corners: Sequence[float], text: str, **style: Any) -> None:
    assert page.insert_textbox(pymupdf.Rect(*corners), text, **{"fontsize": 11, **style}) >= 0


@by_both_extractors
def test_columns_are_read_one_after_the_other_below_their_headline(extractor: ExtractorName):
    def draw(page: Any, _: int) -> None:
        draw_text(page, (310, 120, 545, 700), RIGHT_TEXT)
        draw_text(page, (50, 120, 285, 700), LEFT_TEXT)
        draw_text(page, (50, 60, 545, 100), "Two lives by the sea", fontsize=22)

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text == f"# Two lives by the sea\n\n{LEFT_TEXT}\n\n{RIGHT_TEXT}"


@by_both_extractors
def test_text_outside_of_the_visible_part_of_a_page_is_not_read(extractor: ExtractorName):
    def draw(page: Any, _: int) -> None:
        draw_text(page, (150, 120, 445, 400), LEFT_TEXT)
        for position in ((150, 60), (20, 300), (510, 300), (150, 720), (-300, 300), (150, 900)):
            page.insert_text(position, "Cut away.", fontsize=11)
        page.insert_text((478, 500), "In and out", fontsize=11)
        page.set_cropbox(pymupdf.Rect(100, 100, 500, 700))

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text == f"{LEFT_TEXT}\n\nIn an"


@by_both_extractors
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_rotated_page_is_read_as_it_is_shown(extractor: ExtractorName, degrees: int):
    def draw(page: Any, _: int) -> None:
        draw_text(page, (310, 120, 545, 700), RIGHT_TEXT)
        draw_text(page, (50, 120, 285, 700), LEFT_TEXT)
        draw_text(page, (50, 60, 545, 100), "Two lives by the sea", fontsize=22)
        page.set_cropbox(pymupdf.Rect(20, 30, 570, 740))

    upright = pymupdf.open(stream=make_pdf(draw), filetype="pdf")
    turned_document = pymupdf.open()
    width, height = (550, 710) if degrees in (0, 180) else (710, 550)
    page = turned_document.new_page(width=width, height=height)
    page.show_pdf_page(page.rect, upright, 0, rotate=degrees)
    page.set_rotation(degrees)
    (page_text,) = read_pdf(turned_document.tobytes(), extractor=extractor).pages
    assert page_text.text == f"# Two lives by the sea\n\n{LEFT_TEXT}\n\n{RIGHT_TEXT}"


@by_both_extractors
def test_three_columns_are_read_one_after_the_other(extractor: ExtractorName):
    texts = [LEFT_TEXT, RIGHT_TEXT, LEFT_TEXT.replace("light", "lamp")]

    def draw(page: Any, _: int) -> None:
        for number, text in enumerate(texts):
            left = 40 + number * 180
            draw_text(page, (left, 80, left + 155, 700), text)

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text == "\n\n".join(texts)


@by_both_extractors
def test_words_that_are_broken_at_line_ends_are_joined(extractor: ExtractorName):
    def draw(page: Any, _: int) -> None:
        draw_text(page, (50, 60, 545, 200), "The light-\nhouse stood on the is-\nland alone.")

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text == "The lighthouse stood on the island alone."


@by_both_extractors
def test_running_heads_are_left_out(extractor: ExtractorName):
    def draw(page: Any, number: int) -> None:
        draw_text(page, (50, 30, 545, 60), f"The Journal of Harbours {number}")
        draw_text(page, (50, 200, 545, 300), f"{TEXT} Page {number} has its own words.")
        draw_text(page, (50, 790, 545, 830), f"Page {number} of 4")

    pages = read_pdf(make_pdf(draw, 4), extractor=extractor).pages
    assert [page.text for page in pages] == [
        f"{TEXT} Page {number} has its own words." for number in range(1, 5)
    ]


@by_both_extractors
@pytest.mark.parametrize("number", ["1500", "2021"])
def test_a_number_below_the_text_of_a_single_page_is_read(extractor: ExtractorName, number: str):
    def draw(page: Any, _: int) -> None:
        page.insert_text((50, 100), "Please pay the following amount:", fontsize=11)
        page.insert_text((50, 140), number, fontsize=11)

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text.split("\n\n")[-1].endswith(number)


@by_both_extractors
def test_a_table_is_markdown(extractor: ExtractorName):
    rows = [("Port", "Depth", "Ships"), ("Brest", "14 m", "310"), ("Cork", "11 m", "95")]
    rows += [("Turku", "9 m", "120"), ("A|B", "8 m", "7")]

    def draw(page: Any, _: int) -> None:
        draw_text(page, (50, 60, 545, 100), TEXT)
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                page.insert_text((60 + 150 * column, 140 + 18 * number), cell, fontsize=11)

    (page,) = read_pdf(make_pdf(draw), extractor=extractor).pages
    assert page.text == (
        f"{TEXT}\n\n| Port | Depth | Ships |\n| --- | --- | --- |\n| Brest | 14 m | 310 |\n"
        "| Cork | 11 m | 95 |\n| Turku | 9 m | 120 |\n| A\\|B | 8 m | 7 |"
    )


@by_both_extractors
def test_headings_have_levels_and_the_outline_is_kept(extractor: ExtractorName):
    document = pymupdf.open()
    page = document.new_page()
    draw_text(page, (50, 30, 545, 80), "Of harbours", fontsize=24)
    draw_text(page, (50, 100, 545, 130), "Their lights", fontsize=16)
    draw_text(page, (50, 140, 545, 240), LEFT_TEXT)
    draw_text(page, (50, 260, 545, 280), "The oven")
    draw_text(page, (50, 300, 545, 400), RIGHT_TEXT)
    document.set_toc([[1, "Of harbours", 1], [2, "Their lights", 1], [3, "The oven", 1]])
    pdf_text = read_pdf(bytes(document.tobytes()), extractor=extractor)
    assert pdf_text.pages[0].text == (
        f"# Of harbours\n\n## Their lights\n\n{LEFT_TEXT}\n\n### The oven\n\n{RIGHT_TEXT}"
    )
    assert [(entry.level, entry.title, entry.page) for entry in pdf_text.outline] == [
        (1, "Of harbours", 1),
        (2, "Their lights", 1),
        (3, "The oven", 1),
    ]


@by_both_extractors
def test_both_extractors_report_damage_alike(extractor: ExtractorName):
    undamaged = pdf([TEXT] * 5)
    for data in (b"", undamaged[: len(undamaged) // 2], undamaged[:9]):
        with pytest.raises(CorruptDocument):
            read_pdf(data, extractor=extractor)
    with pytest.raises(EncryptedDocument):
        read_pdf(encrypted("secret"), extractor=extractor)
    assert read_pdf(encrypted(""), extractor=extractor).pages[0].text == TEXT


@by_both_extractors
def test_a_page_is_drawn_at_its_resolution_and_never_too_large(extractor: ExtractorName):
    draw = partial(draw_page_with_text, pdf([TEXT]), 1, limits=Limits(), extractor=extractor)
    _, usual = draw(dpi=72, side=3000)
    assert usual.shape in ((842, 595, 3), (842, 596, 3))
    _, small = draw(dpi=150, side=100)
    assert max(small.shape) in (100, 101)


async def test_the_setting_chooses_the_extractor(pipeline: Pipeline, tmp_path: Path):
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([TEXT], title="On Tides"))
    payload = {
        "document_id": (await _run_ingest_job(pipeline, path)).result["document_id"],
    }
    first = await pipeline.run_job("extract_text", payload)
    second = await pipeline.run_job("extract_text", payload)
    pipeline.settings = pipeline.settings.model_copy(update={"pdf_extractor": "pypdfium2"})
    third = await pipeline.run_job("extract_text", payload)
    reused = [each.result["reused"] for each in (first, second, third) if isinstance(each, Next)]
    assert reused == [False, True, False]


async def _run_ingest_job(pipeline: Pipeline, path: Path) -> Next:
    outcome = await pipeline.run_job("ingest_document", {"path": str(path)})
    assert isinstance(outcome, Next)
    return outcome
