"""Read print once that is drawn several times over, for a shadow or to make it bold."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from switchyard.services.pipeline.text.layout import Line

_MAX_COPY_DISTANCE = 0.25
"""Largest distance of a copy from its original, in sizes of a letter."""
_MIN_SHARED_HEIGHT = 0.6
"""A copy shares at least this part of the smaller height with its original."""
_COMPARED_LINES = 12
"""Number of preceding lines, in order of height, among which a line's original is looked for."""


def without_copies(lines: Sequence[Line]) -> list[Line]:
    """Return the lines in their order, without text that is drawn once more upon another line.

    A line that is part of another is left out; a line that begins with the end of another loses
    that beginning.
    """
    if len(lines) < 2:
        return list(lines)
    indices_by_height = sorted(
        range(len(lines)), key=lambda index: (lines[index].y0, lines[index].x0)
    )
    kept_lines: dict[int, Line] = {}
    recent_indices: list[int] = []
    for index in indices_by_height:
        line: Line | None = lines[index]
        for other_index in reversed(recent_indices):
            other = kept_lines.get(other_index)
            if other is None or line is None or not _overlap(line, other):
                continue
            line, other = _without_overlap(line, other)
            if other is None:
                del kept_lines[other_index]
            else:
                kept_lines[other_index] = other
        if line is not None:
            kept_lines[index] = line
            recent_indices = [*recent_indices[-_COMPARED_LINES:], index]
    return [kept_lines[index] for index in range(len(lines)) if index in kept_lines]


def have_copies(lines: Sequence[Line]) -> bool:
    """Return whether some lines lie upon one another."""
    ordered = sorted(lines, key=lambda line: (line.y0, line.x0))
    return any(
        _overlap(line, other)
        for index, line in enumerate(ordered)
        for other in ordered[max(0, index - _COMPARED_LINES) : index]
    )


def is_copied(
    place: tuple[float, float], size: float, seen_cells: Container[tuple[int, int]]
) -> bool:
    """Return whether a letter at `place` is near one of the cells in `seen_cells`, as `cell_of`
    returns them."""
    x, y = cell_of(place, size)
    return any((x + dx, y + dy) in seen_cells for dx in (-1, 0, 1) for dy in (-1, 0, 1))


def cell_of(place: tuple[float, float], size: float) -> tuple[int, int]:
    """Return the cell of a grid in which a place is. A cell is half as wide as the largest distance
    of a copy from its original."""
    step = _MAX_COPY_DISTANCE * max(size, 1.0) / 2
    return int(place[0] // step), int(place[1] // step)


def _overlap(line: Line, other: Line) -> bool:
    shared_width = min(line.x1, other.x1) - max(line.x0, other.x0)
    if shared_width <= _MAX_COPY_DISTANCE * other.size:
        return False
    shared_height = min(line.y1, other.y1) - max(line.y0, other.y0)
    return shared_height > _MIN_SHARED_HEIGHT * min(line.height, other.height) and (
        abs(line.y0 - other.y0) < _MAX_COPY_DISTANCE * other.size
        and 0.9 * other.size < line.size < 1.1 * other.size
    )


def _without_overlap(line: Line, other: Line) -> tuple[Line | None, Line | None]:
    """Return two lines that lie upon one another, without text that both have; None for a line that
    is a copy as a whole."""
    if _is_part(line, other):
        return None, other
    if _is_part(other, line):
        return line, None
    left, right = (line, other) if line.x0 < other.x0 else (other, line)
    right = _without_start(right, left)
    return (left, right) if line.x0 < other.x0 else (right, left)


def _is_part(line: Line, other: Line) -> bool:
    """Return whether a line's text is part of another's at the same place."""
    tolerance = 2 * _MAX_COPY_DISTANCE * other.size
    text = line.text.strip()
    if line.x0 < other.x0 - tolerance or line.x1 > other.x1 + max(tolerance, _blank_width(line)):
        return False
    start = other.text.find(text)
    letter_width = (other.x1 - other.x0) / max(len(other.text), 1)
    while start >= 0:
        # Letters have different widths, so the place of a letter is only known roughly.
        if abs(other.x0 + start * letter_width - line.x0) < 2 * other.size + 0.2 * (
            other.x1 - other.x0
        ):
            return True
        start = other.text.find(text, start + 1)
    return False


def _blank_width(line: Line) -> float:
    """Return how far a line may reach behind its letters: cleaning may have removed a blank."""
    return 0.6 * line.size


def _without_start(right: Line, left: Line) -> Line:
    """Return a line without the letters at its start that are the end of the one to the left."""
    shared_width = left.x1 - right.x0
    letter_width = (right.x1 - right.x0) / max(len(right.text), 1)
    max_length = min(len(left.text), len(right.text) - 1)
    for length in range(max_length, 0, -1):
        is_same = left.text.endswith(right.text[:length])
        if is_same and 0.4 * shared_width < length * letter_width < 2.5 * shared_width:
            return replace(right, text=right.text[length:].lstrip(), x0=left.x1)
    return right
