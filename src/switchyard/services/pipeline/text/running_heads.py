"""Leave out running heads, footers and page numbers, which repeat at the edge of every page.

A row is left out only where it repeats: the same words in the same place on several pages, and
numbers that are the same on several of them or that grow with the pages. A number that does
neither, such as an amount or a year below a text, is content.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from switchyard.services.pipeline.text.layout import Line, rows_of

_EDGE_SHARE = 0.12
"""Part of a page's height, at its upper and its lower edge, in which running heads are."""
_MIN_PAGES = 3
"""Fewest pages that have a running head; it must also be on a quarter of all pages."""
_BAND_COUNT = 50
"""Bands into which a page's height is divided: a row repeats if it is in the same band."""
_NUMBER = re.compile(
    r"[-–—·|\s]*(?:(?:page|seite|página|p\.|s\.)\s*)?(?:\d{1,4}|[ivxlc]{1,7})"
    r"(?:\s*(?:/|of|von|de|sur)\s*\d{1,4})?[-–—·|.\s]*",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_ROMAN = re.compile(r"\b[ivxlc]{1,7}\b", re.IGNORECASE)
_ROMAN_DIGITS = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_MAX_NUMBER_DIGITS = 9
"""Most digits of a number that grows with the pages."""


class RunningPage(Protocol):
    """The lines and the height of a page."""

    @property
    def height(self) -> float: ...

    @property
    def lines(self) -> Sequence[Line]: ...


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that may repeat."""

    page: int
    lines: Sequence[Line]
    form: str
    """The words and the band of the row, without its numbers: equal for rows that repeat. For a row
    that is only a page number: `above` or `below`, the edge at which it is."""
    numbers: tuple[str, ...]
    is_number: bool


def without_running(pages: Sequence[RunningPage]) -> list[list[Line]]:
    """Return the lines of each page without running heads, footers and the page's number."""
    rows_by_form: defaultdict[str, list[_Row]] = defaultdict(list)
    if len(pages) >= _MIN_PAGES:
        for number, page in enumerate(pages):
            for row in _candidates(page, number):
                rows_by_form[row.form].append(row)
    min_pages = max(_MIN_PAGES, len(pages) / 4)
    running_line_ids = {
        id(line)
        for rows in rows_by_form.values()
        if len({row.page for row in rows}) >= min_pages
        for row in _repeated_rows(rows)
        for line in row.lines
    }
    remaining = [
        [line for line in page.lines if id(line) not in running_line_ids] for page in pages
    ]
    return [lines or list(page.lines) for page, lines in zip(pages, remaining, strict=True)]


def _candidates(page: RunningPage, number: int) -> Iterator[_Row]:
    """Yield two rows of the upper and two of the lower edge, and a row with only a number that is
    the first or the last of the page, wherever it is."""
    top, bottom = page.height * _EDGE_SHARE, page.height * (1 - _EDGE_SHARE)
    top_rows = rows_of([line for line in page.lines if line.y1 < top])[:2]
    bottom_rows = rows_of([line for line in page.lines if line.y0 > bottom])[-2:]
    for name, rows in (("above", top_rows), ("below", bottom_rows)):
        for lines in rows:
            yield _row(page, number, lines, name)
    if len(page.lines) < 2:
        return
    first = min(page.lines, key=lambda line: line.y0)
    last = max(page.lines, key=lambda line: line.y1)
    edge_line_ids = {
        id(line) for rows in (top_rows, bottom_rows) for lines in rows for line in lines
    }
    for name, line in (("above", first), ("below", last)):
        if id(line) not in edge_line_ids and line.text.isdecimal() and len(line.text) < 5:
            yield _row(page, number, [line], name)


def _row(page: RunningPage, number: int, lines: Sequence[Line], edge: str) -> _Row:
    text = " ".join(line.text for line in lines).strip()
    is_number = len(text) < 24 and _NUMBER.fullmatch(text) is not None
    if is_number:
        text = _ROMAN.sub(lambda match: str(_roman(match.group())), text)
        form = edge
    else:
        form = f"{_DIGITS.sub('0', text)} {lines[0].y0 / (page.height or 1) * _BAND_COUNT:.0f}"
    return _Row(number, lines, form, tuple(_DIGITS.findall(text)), is_number)


def _repeated_rows(rows: Sequence[_Row]) -> Iterator[_Row]:
    """Yield the rows of one form whose numbers are the same on other pages, or grow with the
    pages."""
    unchanged_counts: Counter[tuple[int, str]] = Counter()
    growing_counts: Counter[tuple[int, int]] = Counter()
    for row in rows:
        unchanged_counts.update(enumerate(row.numbers))
        growing_counts.update(_offsets(row))
    for row in rows:
        offsets = dict(_offsets(row))
        has_growing = any(growing_counts[each] >= _MIN_PAGES for each in offsets.items())
        all_repeat = all(
            unchanged_counts[position, value] >= _MIN_PAGES
            or (position in offsets and growing_counts[position, offsets[position]] >= _MIN_PAGES)
            for position, value in enumerate(row.numbers)
        )
        if all_repeat and (has_growing or not row.is_number):
            yield row


def _offsets(row: _Row) -> Iterator[tuple[int, int]]:
    """Yield the differences of a row's numbers and the number of its page."""
    for position, value in enumerate(row.numbers):
        if len(value) <= _MAX_NUMBER_DIGITS:
            yield position, int(value) - row.page


def _roman(text: str) -> int:
    values = [_ROMAN_DIGITS[char] for char in text.lower()]
    next_values = [*values[1:], 0]
    pairs = zip(values, next_values, strict=True)
    return sum(-value if value < next_value else value for value, next_value in pairs)
