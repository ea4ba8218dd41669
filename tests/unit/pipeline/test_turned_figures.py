"""Figures of turned and cropped pages are cut out as they are shown, with their captions; each
page of an image file is a figure."""

from __future__ import annotations

import io

import pymupdf
import pytest
from PIL import Image

from switchyard.services.pipeline.text import figures

CORNERS = ("red", "green", "blue", "yellow")
"""Colours of the picture, from left to right and from top to bottom."""


def make_png() -> bytes:
    picture = Image.new("RGB", (300, 200))
    for number, colour in enumerate(CORNERS):
        x, y = number % 2 * 150, number // 2 * 100
        picture.paste(colour, (x, y, x + 150, y + 100))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def make_document() -> pymupdf.Document:
    """Return a document of one page with a picture, a table and a drawing."""
    document = pymupdf.open()
    page = document.new_page(width=600, height=800)
    page.insert_image((100, 100, 400, 300), stream=make_png())
    page.insert_text((100, 320), "Figure 1: Four colours.")
    for number in range(4):
        page.draw_line((100, 400 + number * 20), (400, 400 + number * 20))
        page.draw_line((100 + number * 100, 400), (100 + number * 100, 460))
        page.insert_text((105 + number % 3 * 100, 414), "cell")
    page.insert_text((100, 480), "Table 1: Cells.")
    page.draw_circle((250, 600), 70, fill=(0, 0, 1))
    page.insert_text((150, 690), "Figure 2: A circle.")
    return document


def make_turned_document(degrees: int) -> pymupdf.Document:
    """Return the same page, turned in the file and shown upright by /Rotate."""
    document = pymupdf.open()
    width, height = (600, 800) if degrees % 180 == 0 else (800, 600)
    page = document.new_page(width=width, height=height)
    page.show_pdf_page(page.rect, make_document(), 0, rotate=degrees)
    page.set_rotation(degrees)
    return document


def read_corner_colours(picture: figures.Picture) -> list[object]:
    image = Image.open(io.BytesIO(picture.content)).convert("RGB")
    places = ((1, 1), (3, 1), (1, 3), (3, 3))
    return [image.getpixel((image.width * x // 4, image.height * y // 4)) for x, y in places]


UPRIGHT_COLOURS = [(255, 0, 0), (0, 128, 0), (0, 0, 255), (255, 255, 0)]


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_figures_of_a_turned_page_are_cut_out_as_it_is_shown(degrees: int) -> None:
    pictures = figures._cut_pdf(bytes(make_turned_document(degrees).tobytes())).pictures
    assert [(each.kind, each.caption) for each in pictures] == [
        ("figure", "Figure 1: Four colours."),
        ("table", "Table 1: Cells."),
        ("figure", "Figure 2: A circle."),
    ]
    assert read_corner_colours(pictures[0]) == UPRIGHT_COLOURS
    assert read_corner_colours(pictures[2]) == [(0, 0, 255)] * 4


@pytest.mark.parametrize(
    ("degrees", "corners"),
    [(0, UPRIGHT_COLOURS), (90, [UPRIGHT_COLOURS[index] for index in (2, 0, 3, 1)])],
)
def test_figures_of_a_cropped_page_are_cut_out_as_it_is_shown(
    degrees: int, corners: list[tuple[int, ...]]
) -> None:
    document = make_document()
    document[0].set_cropbox(pymupdf.Rect(80, 80, 500, 350))
    document[0].set_rotation(degrees)
    (picture,) = figures._cut_pdf(bytes(document.tobytes())).pictures
    assert read_corner_colours(picture) == corners


def test_each_page_of_an_image_is_a_figure() -> None:
    content = io.BytesIO()
    pages = [Image.new("RGB", (60 + number, 40), "white") for number in range(3)]
    pages[0].save(content, "TIFF", save_all=True, append_images=pages[1:])
    pictures = figures._cut_image(content.getvalue()).pictures
    assert [(each.page, each.kind, each.width) for each in pictures] == [
        (1, "image", 60),
        (2, "image", 61),
        (3, "image", 62),
    ]
