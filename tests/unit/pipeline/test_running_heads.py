"""Lines that repeat at the edges of pages are left out, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import PageLines, compose
from switchyard.services.pipeline.text.plain_text import unwrap

BODY = "A text of its own on every page, and long enough to be one."


def make_page(*texts_at_heights: tuple[float, str]) -> PageLines:
    """Return a page with its body in the middle, and each text at its height."""
    lines = [
        Line(50, y, 50 + 5 * len(text), y + 10, text, 10)
        for y, text in [*texts_at_heights, (400, BODY)]
    ]
    return PageLines(595, 842, lines)


def read_pages(pages: Sequence[PageLines]) -> list[str]:
    return [" ".join(text.split()) for text in compose(pages)]


@pytest.mark.parametrize("number", ["1500", "2021", "7", "iv", "Page 3", "- 12 -", "3 of 9"])
@pytest.mark.parametrize("page_count", [1, 2, 5])
def test_a_number_that_stands_on_one_page_alone_is_content(number: str, page_count: int):
    for height in (40, 800, 600, 300):
        other_pages = [make_page() for _ in range(page_count - 1)]
        (page_text, *other_texts) = read_pages([make_page((height, number)), *other_pages])
        assert number in page_text
        assert other_texts == [BODY] * (page_count - 1)


@pytest.mark.parametrize("height", [40, 800, 600])
def test_amounts_at_the_same_place_of_every_page_are_content(height: float):
    amounts = ["1500", "2200", "90", "4100"]
    page_texts = read_pages([make_page((height, amount)) for amount in amounts])
    assert all(amount in text for amount, text in zip(amounts, page_texts, strict=True))
    page_texts = read_pages([make_page((height, f"Total {amount}")) for amount in amounts])
    assert all(amount in text for amount, text in zip(amounts, page_texts, strict=True))


@pytest.mark.parametrize(
    "edge_lines",
    [
        ["7", "8", "9", "10"],
        ["i", "ii", "iii", "iv", "v"],
        ["- 1 -", "- 2 -", "- 3 -"],
        ["Page 1 of 4", "Page 2 of 4", "Page 3 of 4", "Page 4 of 4"],
        ["Tides 3", "Tides 4", "Tides 5"],
        ["Chapter 2", "Chapter 2", "Chapter 2", "Chapter 3", "Chapter 3", "Chapter 3"],
        ["Annals, 12 May 2021"] * 3,
    ],
)
def test_lines_that_repeat_or_count_the_pages_are_left_out(edge_lines: list[str]):
    assert read_pages([make_page((800, edge_line)) for edge_line in edge_lines]) == [BODY] * len(
        edge_lines
    )


def test_page_numbers_below_texts_of_different_heights_are_left_out():
    heights = [450, 500, 700, 610]
    pages = [make_page((height, str(number))) for number, height in enumerate(heights, 21)]
    assert read_pages(pages) == [BODY] * 4


def test_a_number_of_thousands_of_digits_is_content():
    digits = "9" * 5_000
    assert all(
        digits[:-1] in text
        for text in read_pages([make_page((800, digits + str(n))) for n in "135"])
    )


@pytest.mark.parametrize("corners", [(50, 60, 50, 60), (50, 60, 40, 50), (0, 0, 0, 0)])
def test_a_line_whose_letters_have_no_size_is_read(corners: tuple[float, float, float, float]):
    line_without_size = Line(*corners, "1500", 0.0)
    (page_text,) = read_pages([PageLines(595, 842, [line_without_size, *make_page().lines])])
    assert sorted(page_text.split()) == sorted(f"1500 {BODY}".split())


@pytest.mark.parametrize(
    ("lines", "joined"),
    [
        ("the light-\nhouse", "the lighthouse"),
        ("THE LIGHT-\nHOUSE", "THE LIGHTHOUSE"),
        ("Jean-\nPierre", "Jean-Pierre"),
        ("ein U-\nBoot", "ein U-Boot"),
        ("COVID-\n19", "COVID-19"),
        ("pp. 312-\n315", "pp. 312-315"),
        ("a 3-\nfold rise", "a 3-fold rise"),
        ("see https://example.org/a-\nb", "see https://example.org/a-b"),
        ("mail jo@some-\nwhere.org", "mail jo@some-where.org"),
    ],
)
def test_a_hyphen_at_a_line_end_is_removed_only_where_it_cut_a_word(lines: str, joined: str):
    assert unwrap(lines) == joined
