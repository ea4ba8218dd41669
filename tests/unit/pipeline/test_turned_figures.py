"""Figures of turned and cropped pages are cut out as they are shown, with their captions; those of
an image are its pages."""

from __future__ import annotations

import io

import pymupdf
import pytest
from PIL import Image

from switchyard.services.pipeline.text import figures

CORNERS = ("red", "green", "blue", "yellow")
"""Of the picture, from left to right and from top to bottom."""


def four_colours() -> bytes:
    picture = Image.new("RGB", (300, 200))
    for number, colour in enumerate(CORNERS):
        x, y = number % 2 * 150, number // 2 * 100
        picture.paste(colour, (x, y, x + 150, y + 100))
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def drawn() -> pymupdf.Document:
    """Return a page with a picture, a table and a drawing."""
    opened = pymupdf.open()
    page = opened.new_page(width=600, height=800)
    page.insert_image((100, 100, 400, 300), stream=four_colours())
    page.insert_text((100, 320), "Figure 1: Four colours.")
    for number in range(4):
        page.draw_line((100, 400 + number * 20), (400, 400 + number * 20))
        page.draw_line((100 + number * 100, 400), (100 + number * 100, 460))
        page.insert_text((105 + number % 3 * 100, 414), "cell")
    page.insert_text((100, 480), "Table 1: Cells.")
    page.draw_circle((250, 600), 70, fill=(0, 0, 1))
    page.insert_text((150, 690), "Figure 2: A circle.")
    return opened


def turned(degrees: int) -> pymupdf.Document:
    """Return the same page, turned in the file and shown upright by /Rotate."""
    document = pymupdf.open()
    width, height = (600, 800) if degrees % 180 == 0 else (800, 600)
    page = document.new_page(width=width, height=height)
    page.show_pdf_page(page.rect, drawn(), 0, rotate=degrees)
    page.set_rotation(degrees)
    return document


def colours(picture: figures.Picture) -> list[object]:
    opened = Image.open(io.BytesIO(picture.content)).convert("RGB")
    places = ((1, 1), (3, 1), (1, 3), (3, 3))
    return [opened.getpixel((opened.width * x // 4, opened.height * y // 4)) for x, y in places]


UPRIGHT = [(255, 0, 0), (0, 128, 0), (0, 0, 255), (255, 255, 0)]


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_figures_of_a_turned_page_are_cut_out_as_it_is_shown(degrees: int) -> None:
    pictures = figures._cut_pdf(bytes(turned(degrees).tobytes())).pictures
    assert [(each.kind, each.caption) for each in pictures] == [
        ("figure", "Figure 1: Four colours."),
        ("table", "Table 1: Cells."),
        ("figure", "Figure 2: A circle."),
    ]
    assert colours(pictures[0]) == UPRIGHT
    assert colours(pictures[2]) == [(0, 0, 255)] * 4


@pytest.mark.parametrize(
    ("degrees", "corners"), [(0, UPRIGHT), (90, [UPRIGHT[index] for index in (2, 0, 3, 1)])]
)
def test_figures_of_a_cropped_page_are_cut_out_as_it_is_shown(
    degrees: int, corners: list[tuple[int, ...]]
) -> None:
    opened = drawn()
    opened[0].set_cropbox(pymupdf.Rect(80, 80, 500, 350))
    opened[0].set_rotation(degrees)
    (picture,) = figures._cut_pdf(bytes(opened.tobytes())).pictures
    assert colours(picture) == corners


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
