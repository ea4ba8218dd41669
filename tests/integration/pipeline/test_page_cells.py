"""Cells that a PDF has in one line are read apart, and words that were set apart are text."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import pymupdf
import pytest

from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf

by_both_extractors = pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])

GOODS = [
    ("Item", "Qty", "Price"),
    ("Lamp oil", "12", "93.50"),
    ("Wick", "7", "4.25"),
    ("Glass chimney", "130", "1,077.00"),
    ("Rope, 20 m", "3", "18.40"),
]
YEARS = [
    ("Region", "1990", "1991", "1992"),
    ("North", "93", "77", "54"),
    ("South", "102", "88", "61"),
    ("East", "9", "1,204", "7"),
    ("West", "45", "30", "12"),
]
PROSE = (
    "The keeper of the light climbed the stairs every evening. He trimmed the wick and filled the "
    "lamp, and wrote down the wind. In winter the waves reached the gallery, and the whole tower "
    "trembled, but the flame behind the glass never once went out in all of those years."
)
OTHER_PROSE = (
    "On the mainland a baker rose at three. Her oven was older than the street, and the first "
    "loaves were for the fishermen. She knew each of them by the sound of his boots, and which "
    "of them would not come back from the autumn storms when the boats were counted."
)


def make_pdf(lines: Iterable[str], font: str = "helv", size: float = 10) -> bytes:
    document = pymupdf.open()
    page = document.new_page()
    for number, line in enumerate(lines):
        page.insert_text((50, 80 + 13 * number), line, fontname=font, fontsize=size)
    return bytes(document.tobytes(no_new_id=True))


def read_text(data: bytes, extractor: ExtractorName) -> str:
    (page,) = read_pdf(data, extractor=extractor).pages
    return page.text


def parse_rows(text: str) -> list[tuple[str, ...]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line) for line in lines if line[0].strip() != "---"]


@by_both_extractors
@pytest.mark.parametrize("font", ["cour", "helv"])
def test_cells_that_blanks_set_apart_are_a_table(extractor: ExtractorName, font: str):
    rows = [f"{item:<20}{count:>6}    {price:>12}" for item, count, price in GOODS]
    intro = "Goods that the keeper ordered in the spring of that year:"
    text = read_text(make_pdf([intro, "", *rows, "", "All of it came by boat."], font), extractor)
    assert parse_rows(text) == GOODS
    assert text.startswith(intro)
    assert text.endswith("All of it came by boat.")


@by_both_extractors
@pytest.mark.parametrize(
    "rows",
    [
        [("Fund", "2023", "2024"), ("Lamps", "$ 1,204", "$   993"), ("Oil", "$    77", "$    81")],
        [
            ("Name", "Tel", "Fax"),
            ("Baker", "12345", "999"),
            ("Keeper", "", "888"),
            ("Ann", "5", "4"),
        ],
    ],
    ids=["amounts", "empty cells"],
)
def test_padded_cells_of_one_word_are_separate_cells(
    extractor: ExtractorName, rows: list[tuple[str, ...]]
):
    text = read_text(make_pdf([f"{a:<12}{b:<10}{c}" for a, b, c in rows], "cour"), extractor)
    assert parse_rows(text) == [tuple(" ".join(cell.split()) for cell in row) for row in rows]


@by_both_extractors
def test_columns_that_blanks_set_apart_are_read_one_after_the_other(extractor: ExtractorName):
    line_pairs = zip_longest(wrap(PROSE, 34), wrap(OTHER_PROSE, 34), fillvalue="")
    lines = [f"{left:<40}{right}" for left, right in line_pairs]
    assert read_text(make_pdf(lines, "cour"), extractor) == f"{PROSE}\n\n{OTHER_PROSE}"


@by_both_extractors
@pytest.mark.parametrize("gap", [4.0, 5.0, 7.5])
@pytest.mark.parametrize("label_gap", [4.5, 60.0])
def test_numbers_close_to_one_another_are_cells_of_their_own(
    extractor: ExtractorName, gap: float, label_gap: float
):
    font, size = pymupdf.Font("helv"), 10
    widths = [max(font.text_length(row[column], size) for row in YEARS) for column in range(4)]
    document = pymupdf.open()
    page = document.new_page()
    for number, (label, *values) in enumerate(YEARS):
        page.insert_text((50, 100 + 13 * number), label, fontsize=size)
        right = 50 + widths[0] + label_gap
        for value, width in zip(values, widths[1:], strict=True):
            right += width
            position = (right - font.text_length(value, size), 100 + 13 * number)
            page.insert_text(position, value, fontsize=size)
            right += gap
    assert parse_rows(read_text(bytes(document.tobytes()), extractor)) == YEARS


def draw_form(page: Any, x: float, title: str, entries: Sequence[str], number: str) -> None:
    page.insert_text((x, 70), title, fontsize=14)
    for index, entry in enumerate(entries):
        page.insert_text((x, 100 + 18 * index), "o", fontname="zadb", fontsize=10)
        page.insert_text((x + 20, 100 + 18 * index), entry, fontsize=10)
    page.insert_text((x, 260), "Please tick all that apply, and sign below.", fontsize=10)
    page.insert_text((x + 150, 570), number, fontsize=9)


@by_both_extractors
def test_facing_pages_with_boxes_to_tick_are_read_one_after_the_other(extractor: ExtractorName):
    symptoms = ["Fever", "Cough", "Headache", "Nausea", "Rash", "Sore throat"]
    allergies = ["Penicillin", "Pollen", "Dust mites", "Nuts", "Milk", "Bee stings"]
    document = pymupdf.open()
    page = document.new_page(width=842, height=595)
    draw_form(page, 50, "Symptoms in the last two weeks", symptoms, "4")
    draw_form(page, 470, "Known allergies", allergies, "5")
    text = read_text(bytes(document.tobytes()), extractor)
    words = [" ".join(row[1:]) for row in parse_rows(text)]
    assert words == symptoms + allergies
    assert text.index("Sore throat") < text.index("Known allergies") < text.index("Penicillin")
    assert text.count("Please tick") == 2


@by_both_extractors
def test_a_table_over_a_wide_page_stays_whole(extractor: ExtractorName):
    document = pymupdf.open()
    page = document.new_page(width=842, height=595)
    rows = [("Port", "Depth", "Ships", "Cranes"), ("Brest", "14 m", "310", "6")]
    rows += [("Cork", "11 m", "95", "2"), ("Turku", "9 m", "120", "4"), ("Bari", "8 m", "7", "1")]
    for number, row in enumerate(rows):
        for x, cell in zip((50, 200, 470, 620), row, strict=True):
            page.insert_text((x, 100 + 18 * number), cell, fontsize=10)
    assert parse_rows(read_text(bytes(document.tobytes()), extractor)) == rows


def make_justified_pdf(text: str, columns: int, width: float) -> bytes:
    """Return a page of justified text, each word placed by itself, as typesetters do it."""
    font, size = pymupdf.Font("helv"), 10
    document = pymupdf.open()
    page = document.new_page()
    for number, line in enumerate(wrap(text, columns)[:-1]):
        words = line.split()
        lengths = [font.text_length(word, size) for word in words]
        gap = (width - sum(lengths)) / max(len(words) - 1, 1)
        x = 50.0
        for word, length in zip(words, lengths, strict=True):
            page.insert_text((x, 80 + 12 * number), word, fontsize=size)
            x += length + gap
    return bytes(document.tobytes(no_new_id=True))


def justify_with_blanks(text: str, columns: int) -> list[str]:
    """Justify lines with further blanks between some of the words, as printers of plain text do
    it."""
    rng = random.Random(1)
    lines = []
    for line in wrap(text, columns):
        words = line.split()
        while len(" ".join(words)) < columns:
            words[rng.randrange(len(words) - 1)] += " "
        lines.append(" ".join(words))
    return lines


@by_both_extractors
@pytest.mark.parametrize(("columns", "width"), [(22, 115), (40, 200), (70, 330)])
def test_justified_text_is_no_table(extractor: ExtractorName, columns: int, width: float):
    text = f"{PROSE} {OTHER_PROSE} " * 3
    assert "|" not in read_text(make_justified_pdf(text, columns, width), extractor)


CODE = """int main(void) {
    int   age;       /* years */
    char *name;      /* spoken */
    long  tower;     /* number */
    float height;    /* metres */
}"""
REFERENCES = """[1] Smith J 1999 Nature 401 23 lamps
[2] Brown K 2001 Science 88 14 oil
[3] White L 1987 Nature 77 210 wick
[4] Green M 1990 Science 65 12 tower"""
ALIGNED_BY_CHANCE = {
    "filled with blanks": justify_with_blanks(f"{PROSE} {OTHER_PROSE} " * 4, 60),
    "thousands": ["1 234 567", "2 345 678", "9 876 543", "1 111 222", "4 555 666"],
    "digits": [f"{n}4159 2653{n} 8979{n} 2384{n} 2643{n}" for n in range(6)],
    "code": CODE.splitlines(),
    "references": REFERENCES.splitlines(),
}


@by_both_extractors
@pytest.mark.parametrize("lines", ALIGNED_BY_CHANCE.values(), ids=ALIGNED_BY_CHANCE)
def test_text_that_is_aligned_by_chance_is_no_table(extractor: ExtractorName, lines: list[str]):
    assert "|" not in read_text(make_pdf(lines, "cour"), extractor)
