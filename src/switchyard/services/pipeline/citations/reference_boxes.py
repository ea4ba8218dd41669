"""Find where on the pages each reference of a list stands."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from switchyard.services.pipeline.text.layout import Line, reading_order
from switchyard.services.pipeline.text.markdown import PageLines

_OTHER_SIGNS = re.compile(r"[\W_]+")
_MIN_SIGNS = 24
"""Letters and digits of a reference's beginning that are looked for."""


@dataclass(frozen=True)
class Box:
    """A rectangle on a page (from 1), in points from its upper left corner."""

    page: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class _PlacedLine:
    line: Line
    page: int
    block: int


def boxes_of(
    pages: Sequence[PageLines | None], references: Sequence[tuple[int, str]]
) -> list[list[Box]]:
    """Return the boxes of each reference, which is given as its page (from 1) and its text.

    A reference has one box for each column and page that it is in; none if it is not found on its
    page. A box has whole lines: where a reference begins within a line, boxes overlap.
    """
    placed_lines: list[_PlacedLine] = []
    line_starts: list[int] = []
    page_starts: dict[int, int] = {}
    signs: list[str] = []
    length = 0
    for number, page in enumerate(pages, start=1):
        page_starts[number] = length
        blocks = [] if page is None else reading_order(page.lines)
        for block, line in ((i, line) for i, lines in enumerate(blocks) for line in lines):
            line_signs = _letters_and_digits(line.text)
            placed_lines.append(_PlacedLine(line, number, block))
            line_starts.append(length)
            signs.append(line_signs)
            length += len(line_signs)
        # Offsets below count the letters and digits of all pages in one text.
    all_signs = "".join(signs)
    page_starts[len(pages) + 1] = length
    search_from = 0
    boxes: list[list[Box]] = []
    for number, text in references:
        reference_signs = _letters_and_digits(text)
        page_begin, page_end = page_starts.get(number, 0), page_starts.get(number + 1, length)
        # Search behind the previous reference: several may begin with the same text.
        start = all_signs.find(
            reference_signs[:_MIN_SIGNS], max(search_from, page_begin), page_end + _MIN_SIGNS
        )
        if start < 0:
            start = all_signs.find(reference_signs[:_MIN_SIGNS], page_begin, page_end + _MIN_SIGNS)
        if start < 0 or not reference_signs:
            boxes.append([])
            continue
        search_from = start + len(reference_signs)
        lines = placed_lines[
            bisect_right(line_starts, start) - 1 : bisect_right(line_starts, search_from - 1)
        ]
        boxes.append(list(_boxes(lines)))
    return boxes


def _boxes(lines: Sequence[_PlacedLine]) -> Iterator[Box]:
    for (page, _), group in itertools.groupby(lines, key=lambda each: (each.page, each.block)):
        block_lines = [each.line for each in group]
        x, y = min(line.x0 for line in block_lines), min(line.y0 for line in block_lines)
        width = max(line.x1 for line in block_lines) - x
        height = max(line.y1 for line in block_lines) - y
        yield Box(page, round(x, 1), round(y, 1), round(width, 1), round(height, 1))


def _letters_and_digits(text: str) -> str:
    """Return only the letters and digits, so that words cut by a line's end are whole again."""
    return _OTHER_SIGNS.sub("", unicodedata.normalize("NFKC", text)).casefold()
