"""Letters from right to left are put into the order in which they are read, by their places."""

from __future__ import annotations

import random

import pytest

from switchyard.services.pipeline.text.bidi import Glyph, text_in_order

SEEN_BY_READ = {
    "שלום עולם (2021) Python 3.11 סוף": "ףוס Python 3.11 (2021) םלוע םולש",
    "وزارة الداخلية": "ةيلخادلا ةرازو",
    "السلام عليكم في 31 مارس 2021": "2021 سرام 31 يف مكيلع مالسلا",
    "סכום: 1,500.50 ₪": "₪ 1,500.50 :םוכס",
    "רוח Python (CPython) סוף": "ףוס Python (CPython) חור",
    "א.ב. (ג) 3-4": "3-4 (ג) .ב.א",
    "מחיר 25% הנחה": "החנה 25% ריחמ",
    "ראה https://a.org/b?c=1 כאן": "ןאכ https://a.org/b?c=1 האר",
    "The word שלום עולם means peace": "The word םלוע םולש means peace",
}
"""Lines as they are read, each with its letters as they are seen from left to right."""


def place_glyphs(seen_line: str) -> list[Glyph]:
    return [Glyph(char, 10.0 * index, 10.0 * index + 10) for index, char in enumerate(seen_line)]


@pytest.mark.parametrize("line", SEEN_BY_READ)
@pytest.mark.parametrize("order", ["from left", "from right", "at random"])
def test_a_line_is_read_whichever_way_the_file_has_its_glyphs(line: str, order: str):
    glyphs = place_glyphs(SEEN_BY_READ[line])
    if order == "from right":
        glyphs.reverse()
    elif order == "at random":
        random.Random(5).shuffle(glyphs)
    assert text_in_order(glyphs, 10) == line


@pytest.mark.parametrize("line", ["وزارة الداخلية", "שלום עולם של מים"])
def test_a_line_that_is_shown_as_in_a_mirror_is_read(line: str):
    assert text_in_order(place_glyphs(line), 10) == line


def test_the_letters_of_a_ligature_keep_their_order():
    glyphs = [Glyph("م", 0, 10), Glyph("لا", 10, 20), Glyph("س", 20, 30)]
    assert text_in_order(glyphs, 10) == "سلام"


def test_marks_stay_with_their_letters_and_wide_spaces_are_blanks():
    glyphs = [Glyph("ב", 0, 10), Glyph("א", 16, 26), Glyph("\u05b8", 20, 20)]
    assert text_in_order(glyphs, 10) == "א\u05b8 ב"
