"""Pictures of every kind are read, however they were scanned; hostile ones are refused."""

from __future__ import annotations

import io

import numpy as np
import pymupdf
import pytest
from PIL import Image

from benchmarks.documents.scoring import accuracy
from switchyard.services.common.files.errors import CorruptDocument, DocumentTooLarge
from switchyard.services.pipeline.samples.articles import sample
from switchyard.services.pipeline.samples.generated_samples import generate
from switchyard.services.pipeline.text.images import count_pages, draw
from switchyard.services.pipeline.text.ocr import (
    MAX_PIXELS,
    MAX_SIDE,
    PLACES,
    OcrNotInstalled,
    read_picture,
)
from tests.integration.pipeline.scans import SLIPS, convert_to_image, draw_page
from tests.support.pdfs import slips

PIXEL_LIMIT = 50_000_000


def test_an_image_is_measured_before_it_is_decoded():
    buffer = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(buffer, "PNG")
    with pytest.raises(DocumentTooLarge, match="12000 × 12000"):
        count_pages(buffer.getvalue(), max_pixels=PIXEL_LIMIT, max_pages=10)
    with pytest.raises(DocumentTooLarge, match="12000 × 12000"):
        draw(buffer.getvalue(), 1, pixels=PIXEL_LIMIT, side=100)


def test_a_tiff_with_too_many_pages_is_refused():
    frames = [Image.new("L", (4, 4)) for _ in range(5)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "TIFF", save_all=True, append_images=frames[1:])
    assert count_pages(buffer.getvalue(), max_pixels=PIXEL_LIMIT, max_pages=5) == 5
    with pytest.raises(DocumentTooLarge, match="4 pages"):
        count_pages(buffer.getvalue(), max_pixels=PIXEL_LIMIT, max_pages=4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("percent", [3, 30, 70])
def test_an_image_that_was_cut_off_is_corrupt(kind: str, percent: int):
    content = convert_to_image(slips(SLIPS[:1]), kind)
    with pytest.raises(CorruptDocument):
        draw(content[: len(content) * percent // 100], 1, pixels=PIXEL_LIMIT, side=1000)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_images_of_every_kind_are_drawn_in_colour(mode: str):
    buffer = io.BytesIO()
    Image.new("L", (60, 30), 255).convert("I;16" if mode == "I;16" else mode).save(buffer, "PNG")
    assert draw(buffer.getvalue(), 1, pixels=PIXEL_LIMIT, side=30).size == (30, 15)
    assert draw(buffer.getvalue(), 1, pixels=PIXEL_LIMIT, side=30).mode == "RGB"


@pytest.mark.parametrize(("quarter_turns", "degrees"), [(0, 0), (1, 270), (2, 180), (3, 90)])
def test_a_page_that_lies_on_its_side_is_turned_and_its_lines_lie_where_they_are_printed(
    quarter_turns: int, degrees: int
):
    picture = np.rot90(draw_page(slips(SLIPS[:1])), quarter_turns)
    reading = read_picture(picture)
    assert (reading.text, reading.turned) == (SLIPS[0], degrees)
    assert " ".join(line.text for line in reading.lines).split() == SLIPS[0].split()
    ink = np.argwhere(picture.min(axis=2) < 128) / picture.shape[:2]
    (top, left), (bottom, right) = ink.min(axis=0), ink.max(axis=0)
    boxes = np.array([(line.x0, line.y0, line.x1, line.y1) for line in reading.lines]) / PLACES
    outer_box = [*boxes.min(axis=0)[:2], *boxes.max(axis=0)[2:]]
    assert outer_box == pytest.approx([left, top, right, bottom], abs=0.04)


def test_long_lines_that_stand_upside_down_are_turned():
    _, generated = generate(2, seed=5, kinds=["text"], languages=["en"])
    lines = draw_page(generated.content)[332:460]
    # The engine enlarges lower pictures to this height.
    page = np.full((736, *lines.shape[1:]), 255, lines.dtype)
    page[300 : 300 + len(lines)] = lines
    reading = read_picture(np.rot90(page, 2))
    assert reading.turned == 180
    assert reading.text.startswith("With few exceptions, the pumped storage station reduced its")


@pytest.mark.long
@pytest.mark.parametrize(
    ("quarter_turns", "kind", "language", "skew"),
    [
        (1, "text", "en", 3),
        (1, "text", "zh", 0),
        (1, "paper", "fr", -3),
        (2, "text", "en", 3),
        (3, "text", "de", 0),
        (3, "paper", "fr", -3),
        (3, "text", "en", 3),
    ],
)
def test_pages_are_turned_however_they_were_scanned(
    quarter_turns: int, kind: str, language: str, skew: int
):
    (generated,) = generate(1, seed=1, kinds=[kind], languages=[language])
    straight = Image.fromarray(draw_page(generated.content))
    skewed = np.asarray(straight.rotate(skew, fillcolor="white", expand=True))
    reading = read_picture(np.rot90(skewed, quarter_turns))
    assert reading.turned == 360 - 90 * quarter_turns
    blocks = [block for block in (*generated.blocks, *generated.furniture) if block.page == 1]
    assert accuracy(blocks, reading.text) > 95


@pytest.mark.long
def test_a_skewed_page_keeps_its_order():
    straight = Image.fromarray(draw_page(sample(0).content)[:700])
    skewed = np.asarray(straight.rotate(3, fillcolor="white", expand=True))
    reading = read_picture(skewed)
    assert reading.text.startswith("# Why the Ocean Has Tides\n\nTwice a day the sea climbs")
    assert "and two low tides in a little under twenty-five hours." in reading.text


@pytest.mark.long
@pytest.mark.parametrize("sideways", [False, True])
def test_a_long_screenshot_is_read_in_pieces_and_no_line_is_cut_or_doubled(sideways: bool):
    document = pymupdf.open()
    width, height = (9_000, 400) if sideways else (700, 9_000)
    page = document.new_page(width=width, height=height)
    expected_lines = [f"Line {number:02d} of the {SLIPS[number % 3]}" for number in range(12)]
    for number, line in enumerate(expected_lines):
        # Some lines stand where a piece begins.
        corner = (40 + 700 * number, 200) if sideways else (40, 60 + 740 * number)
        page.insert_text(corner, line, fontsize=26)
    content = page.get_pixmap().tobytes("png")
    picture = draw(content, 1, pixels=PIXEL_LIMIT, side=MAX_SIDE, area=MAX_PIXELS)
    assert picture.size == (width, height)
    text = read_picture(np.asarray(picture)).text
    assert [line for line in expected_lines if line not in text] == []
    assert len(text.split()) == sum(len(line.split()) for line in expected_lines)


def test_no_model_is_loaded_for_an_empty_page():
    """Such a page took more than two seconds, and a file of 300 KB may have 2,000 of them."""
    page = np.full((200, 100, 3), (255, 240, 200), np.uint8)
    assert read_picture(page, "no/model.onnx").text == ""
    page[100, 10:50] = 0
    with pytest.raises(OcrNotInstalled):
        read_picture(page, "no/model.onnx")
