"""Turn Chinese and Japanese that is written from top to bottom, in columns from right to left."""

from __future__ import annotations

import re
from collections.abc import Sequence

from switchyard.services.pipeline.text.layout import Line

_EAST_ASIAN = re.compile("[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f]")
_MAX_SIDE_BY_SIDE = 3
"""Characters side by side in a column at most, as digits are."""
_MIN_COLUMN_LENGTH = 5
"""A column with at least this many characters is text, and not a column of a table."""
_MAX_LETTER_GAP = 0.7
"""Largest distance of two letters of a column, in heights of a letter."""


def turn_vertical_lines(lines: Sequence[Line], width: float) -> list[Line] | None:
    """Turn the lines of a page that is written from top to bottom to the left, so that its columns
    become lines below one another. None where the page is written level. `width` is the page's."""
    if 2 * sum(_may_be_vertical(line) for line in lines) <= len(lines):
        return None
    columns = _columns(lines)
    texts = ["".join(line.text for line in column) for column in columns]
    vertical_letters = sum(
        len(_EAST_ASIAN.findall(text))
        for column, text in zip(columns, texts, strict=True)
        if len(text) >= _MIN_COLUMN_LENGTH and _may_be_vertical(column[0])
    )
    if 2 * vertical_letters <= sum(map(len, texts)):
        return None
    return [_turn_column(column, text, width) for column, text in zip(columns, texts, strict=True)]


def _columns(lines: Sequence[Line]) -> list[list[Line]]:
    """Join each line with the lines directly below it."""
    columns: list[list[Line]] = []
    for line in lines:
        if columns and _may_be_vertical(line) and _is_below(columns[-1][-1], line):
            columns[-1].append(line)
        else:
            columns.append([line])
    return columns


def _may_be_vertical(line: Line) -> bool:
    return len(line.text) <= _MAX_SIDE_BY_SIDE or line.height > 1.5 * (line.x1 - line.x0)


def _is_below(above: Line, line: Line) -> bool:
    size = max(above.size, line.size)
    sideways_distance = abs(line.x0 + line.x1 - above.x0 - above.x1) / 2
    return (
        _may_be_vertical(above)
        and sideways_distance < 0.4 * size
        and abs(line.y0 - above.y1) < _MAX_LETTER_GAP * size
    )


def _turn_column(column: Sequence[Line], text: str, width: float) -> Line:
    right, left = max(line.x1 for line in column), min(line.x0 for line in column)
    bold = all(line.bold for line in column)
    return Line(
        column[0].y0, width - right, column[-1].y1, width - left, text, column[0].size, bold
    )
