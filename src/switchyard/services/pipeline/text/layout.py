"""Put the lines of a page into the order in which a person reads them.

The input is the lines of a page with their places, from a PDF or from OCR, in any order. Columns
are found by their gutters, and lines that lie across a gutter (headings, a table over both columns)
divide the columns into parts above and below them. Everything here takes time in proportion to n
log n of the lines; beyond limits that no page for people reaches, the order is only rough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from statistics import median

MAX_LINES = 20_000
"""Lines of a page beyond which they are only sorted."""
_MAX_DEPTH = 24
"""Deepest level of divisions within divisions."""
_MIN_GUTTER = 0.5
"""Smallest width of the space between two columns, in heights of a line."""
_MAX_CROSSED_SHARE = 0.6
"""Lines may cross a gutter for at most this part of the height of its emptier side."""
_MIN_ROW_OVERLAP = 0.5
"""Two lines are one row if they share at least this part of the smaller height."""
_PARAGRAPH_STEP = 1.3
"""A paragraph begins where the step from line to line is this many times the usual one."""

_MIN_SPREAD_RATIO = 1.15
"""Two pages side by side are at least this many times as wide as high."""
_MIN_INNER_MARGIN = 0.04
"""Smallest space between the texts of two pages, as a part of the width of both."""
_MAX_MARGIN_DIFFERENCE = 0.05
"""Largest difference of the left margins of two pages, as a part of the width of both."""
_MIN_PAGE_TEXT = 0.15
"""Smallest width of the text of one of two pages, as a part of the width of both."""
_MIN_FULL_WIDTH = 0.6
"""A line that takes at least this part of the width of a page's text is no cell of a table."""
_MIN_PAGE_ROWS = 4
_BOX = re.compile(
    "\\[[ xX]?\\]|\\([ xX]?\\)|[\u25a0-\u25ff\u2610-\u2612\u2700-\u27bf\uf000-\uf0ff]"
)


@dataclass(slots=True)
class Line:
    """A line of text, or the part of a line that is in one column. Places are from the left and
    from the top, in any unit. Never change a line: the class is only not frozen because making a
    page's lines would take three times as long."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str
    size: float
    """Height of its letters."""
    bold: bool = False
    is_table: bool = False
    """Whether the line stands for a whole table; then its text is Markdown."""

    @property
    def height(self) -> float:
        return self.y1 - self.y0


def reading_order(lines: Iterable[Line]) -> list[list[Line]]:
    """Return the lines in blocks, one for each column or line across columns, in the order of
    reading.

    Lines without text are left out; lines without height or width get a small one.
    """
    return [[line for row in rows for line in row] for rows in blocks_of(lines)]


def blocks_of(lines: Iterable[Line]) -> list[list[list[Line]]]:
    """Do what `reading_order` does, with each block in rows."""
    lines_with_area = [
        line if line.x1 > line.x0 and line.y1 > line.y0 else _with_area(line)
        for line in lines
        if line.text.strip()
    ]
    if not lines_with_area:
        return []
    if len(lines_with_area) > MAX_LINES:
        return [rows_of(lines_with_area)]
    unit = _unit(lines_with_area)
    blocks: list[list[list[Line]]] = []
    _append_in_order(lines_with_area, unit, blocks, 0)
    return blocks


def facing_pages(lines: Sequence[Line], width: float, height: float) -> list[list[Line]]:
    """Return the lines of the left and of the right page, where two facing pages were made one, as
    in scans and printers' files; else all lines together.

    A table across the whole width may have an even space in its middle, too. It is told by its
    cells, which are not as wide as a page's headlines and sentences.
    """
    if width < _MIN_SPREAD_RATIO * height or not 2 * _MIN_PAGE_ROWS <= len(lines) <= MAX_LINES:
        return [list(lines)]
    gap = _widest_gap(lines)
    if gap is None or gap[1] - gap[0] < _MIN_INNER_MARGIN * width:
        return [list(lines)]
    if not gap[0] - 0.02 * width < width / 2 < gap[1] + 0.02 * width:
        return [list(lines)]
    halves = [
        [line for line in lines if line.x1 <= gap[0]],
        [line for line in lines if line.x0 >= gap[1]],
    ]
    return halves if _are_pages(halves, width) else [list(lines)]


def _widest_gap(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Return left and right edge of the widest vertical space without a line."""
    gaps: list[tuple[float, float]] = []
    right: float | None = None
    for line in sorted(lines, key=lambda line: line.x0):
        if right is not None and line.x0 > right:
            gaps.append((right, line.x0))
        right = line.x1 if right is None else max(right, line.x1)
    return max(gaps, key=lambda gap: gap[1] - gap[0], default=None)


def _are_pages(halves: Sequence[Sequence[Line]], width: float) -> bool:
    """Return whether the two sides of the middle are pages: they have similar margins, and lines
    that are no cells, such as sentences or entries with a box to tick."""
    margins = [min(line.x0 for line in half) for half in halves]
    if abs(margins[1] - width / 2 - margins[0]) > _MAX_MARGIN_DIFFERENCE * width:
        return False
    for half, margin in zip(halves, margins, strict=True):
        extent = max(line.x1 for line in half) - margin
        text_lines = sum(
            line.x1 - line.x0 > _MIN_FULL_WIDTH * extent or _has_box(line) for line in half
        )
        if len(rows_of(half)) < _MIN_PAGE_ROWS or extent < _MIN_PAGE_TEXT * width or text_lines < 3:
            return False
    return True


def _has_box(line: Line) -> bool:
    """Return whether a line begins with a box to tick, which may be a letter of a symbol font."""
    text = line.text
    return _BOX.match(text) is not None or (len(text) == 1 and text.isalpha())


def _with_area(line: Line) -> Line:
    """Return the line with an area. Fonts may give their letters none, and damaged files may give
    letters no place, but a line that can be read is content nevertheless."""
    x0, y0, x1, y1 = (
        place if isfinite(place) else 0.0 for place in (line.x0, line.y0, line.x1, line.y1)
    )
    return replace(line, x0=x0, y0=y0, x1=max(x1, x0 + 1), y1=max(y1, y0 + 1))


def paragraphs_of(rows: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Group the lines of a block's rows into paragraphs: a paragraph begins below a wider space,
    with letters of another size, or where a line is indented."""
    if not rows:
        return []
    unit = median(line.size for row in rows for line in row)
    steps = [_middle(below) - _middle(above) for above, below in pairwise(rows)]
    usual_step = median(steps) if steps else 0.0
    left = min(line.x0 for row in rows for line in row)
    paragraphs: list[list[Line]] = [list(rows[0])]
    for above, below, step in zip(rows, rows[1:], steps, strict=False):
        is_spaced = step > _PARAGRAPH_STEP * usual_step or step > 2.6 * unit
        # Multiplied and not divided, as a damaged file may have letters of no size.
        is_resized = not 0.85 * above[0].size < below[0].size < 1.18 * above[0].size
        is_indented = below[0].x0 - left > 0.8 * unit and above[0].x0 - left < 0.4 * unit
        is_table = above[0].is_table or below[0].is_table
        if is_spaced or is_resized or is_table or (is_indented and len(rows) > 2):
            paragraphs.append([])
        paragraphs[-1].extend(below)
    return paragraphs


def _append_in_order(
    lines: list[Line], unit: float, blocks: list[list[list[Line]]], depth: int
) -> None:
    """Append the lines to `blocks`, divided by the gutter that is crossed least."""
    gutter = _gutter(lines, unit) if depth < _MAX_DEPTH and len(lines) > 3 else None
    if gutter is None:
        blocks.append(rows_of(lines))
        return
    bridges = [line for line in lines if line.x0 < gutter < line.x1]
    others = [line for line in lines if not line.x0 < gutter < line.x1]
    for bridge, band in _split_at_bridges(bridges, others):
        left = [line for line in band if line.x1 <= gutter]
        right = [line for line in band if line.x0 >= gutter]
        for side in (left, right):
            if side:
                _append_in_order(side, unit, blocks, depth + 1)
        if bridge:
            _append_in_order(bridge, unit, blocks, _MAX_DEPTH)


def _split_at_bridges(
    bridges: list[Line], others: list[Line]
) -> Iterable[tuple[list[Line], list[Line]]]:
    """Yield, for each run of lines across the gutter (`bridges`), that run and the lines beside the
    gutter above it; last, an empty run and the lines below all runs."""
    bridges.sort(key=lambda line: (line.y0, line.x0))
    others.sort(key=lambda line: line.y0 + line.y1)
    index = start = 0
    while start < len(bridges):
        middle = bridges[start].y0 + bridges[start].y1
        first = index
        while index < len(others) and others[index].y0 + others[index].y1 < middle:
            index += 1
        next_middle = others[index].y0 + others[index].y1 if index < len(others) else float("inf")
        end = start
        while end < len(bridges) and bridges[end].y0 + bridges[end].y1 <= next_middle:
            end += 1
        end = max(end, start + 1)
        yield bridges[start:end], others[first:index]
        start = end
    yield [], others[index:]


def gutters(lines: Sequence[Line], *, max_crossed: float) -> list[tuple[float, float]]:
    """Return left and right edge of the gutters between columns. Lines may cross a gutter for at
    most that part of the height of its emptier side."""
    if not 3 < len(lines) <= MAX_LINES:
        return []
    unit = _unit(lines)
    return [(start, end) for start, end, _ in _spaces(lines, unit, max_crossed)]


def _gutter(lines: Sequence[Line], unit: float) -> float | None:
    """Return the middle of the widest space between two columns that few lines cross; None where
    there is one column."""
    spaces = sorted(_spaces(lines, unit, _MAX_CROSSED_SHARE), key=lambda space: -space[2])
    return next(((start + end) / 2 for start, end, _ in spaces), None)


def _spaces(
    lines: Sequence[Line], unit: float, max_crossed: float
) -> list[tuple[float, float, float]]:
    """Return the spaces between columns: left and right edge, and how good each is."""
    heights = [line.y1 - line.y0 for line in lines]
    edges = sorted(
        [(line.x0, height) for line, height in zip(lines, heights, strict=True)]
        + [(line.x1, -height) for line, height in zip(lines, heights, strict=True)]
    )
    left_of = right_of = crossing = 0.0
    total = sum(heights)
    spaces: list[tuple[float, float, float]] = []
    for (start, height), (end, _) in pairwise(edges):
        crossing += height
        if height < 0:
            left_of -= height
        right_of = total - left_of - crossing
        width = end - start
        if width < _MIN_GUTTER * unit:
            continue
        emptier_side = min(left_of, right_of)
        if emptier_side < 2 * unit or crossing > max_crossed * emptier_side:
            continue
        spaces.append((start, end, width / (1 + crossing / emptier_side)))
    # A closer look takes time: only the best few get it, and a page for people has no more.
    spaces.sort(key=lambda space: -space[2])
    return [space for space in spaces[:8] if _are_columns(lines, space[0], space[1], unit)]


def _are_columns(lines: Sequence[Line], start: float, end: float, unit: float) -> bool:
    """Return whether both sides of a space are columns: each has at least two lines beside the
    other side, and they are not the labels and values of a form or a list."""
    left = [line for line in lines if line.x1 <= start]
    right = [line for line in lines if line.x0 >= end]
    if len(left) < 2 or len(right) < 2:
        return False
    top = max(min(line.y0 for line in left), min(line.y0 for line in right))
    bottom = min(max(line.y1 for line in left), max(line.y1 for line in right))
    if bottom - top < 1.5 * unit:
        return False
    return all(_is_prose(side, unit) for side in (left, right))


def _is_prose(side: Sequence[Line], unit: float) -> bool:
    """Return whether lines are long enough to be a column of text: at least six heights of a
    letter."""
    return median(line.x1 - line.x0 for line in side) > 6 * unit


def rows_of(lines: Iterable[Line]) -> list[list[Line]]:
    """Group lines into rows from top to bottom; lines side by side are one row, from left to
    right."""
    rows: list[list[Line]] = []
    last_y0 = last_y1 = 0.0
    # The inner loop of all layout, so it calls no functions.
    for line in sorted(lines, key=lambda line: (line.y0 + line.y1, line.x0)):
        y0, y1 = line.y0, line.y1
        if rows:
            shared = (last_y1 if last_y1 < y1 else y1) - (last_y0 if last_y0 > y0 else y0)
            height, last_height = y1 - y0, last_y1 - last_y0
            if shared > _MIN_ROW_OVERLAP * (height if height < last_height else last_height):
                rows[-1].append(line)
            else:
                rows.append([line])
        else:
            rows.append([line])
        last_y0, last_y1 = y0, y1
    for row in rows:
        if len(row) > 1:
            row.sort(key=lambda line: line.x0)
    return rows


def _unit(lines: Iterable[Line]) -> float:
    """Return the height of a usual line."""
    heights = [line.y1 - line.y0 for line in lines if not line.is_table]
    return median(heights) if heights else 1.0


def _middle(row: Sequence[Line]) -> float:
    if len(row) == 1:
        return (row[0].y0 + row[0].y1) / 2
    return sum(line.y0 + line.y1 for line in row) / (2 * len(row))
