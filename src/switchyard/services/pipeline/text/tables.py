"""Find tables by cells side by side in row after row, and write them as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from switchyard.services.pipeline.text.layout import MAX_LINES, Line, rows_of

_MIN_ROWS = 3
_MAX_COLUMNS = 40
_MIN_PROSE_LETTERS = 28
"""Lines side by side with at least this many letters, on average, are columns of text."""
_MAX_CELL_LETTERS = 16
"""Lines side by side with at most this many letters, on average, are cells of a table."""
_MIN_JUSTIFIED_SHARE = 0.75
"""Text is justified if at least this part of its rows reach from its left to its right edge."""
_MIN_ALIGNED_SHARE = 0.7
"""Smallest part of a table's cells that are aligned with others."""
_ALIGNMENT_TOLERANCE = 0.15
"""Two cells are aligned if their edges differ by at most this many sizes of a letter."""
_MIN_FILLED_SHARE = 0.5
"""Smallest part of the cells of a table that are not empty."""


def replace_tables(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, with each table as one line of its own, whose text is Markdown."""
    if not 2 * _MIN_ROWS <= len(lines) <= MAX_LINES:
        return list(lines)
    rows = rows_of(lines)
    return _replace_found_tables(rows) or [line for row in rows for line in row]


def replace_tables_in_rows(rows: list[list[Line]]) -> list[list[Line]]:
    """Do what `replace_tables` does, for lines that are in rows."""
    if not 2 * _MIN_ROWS <= sum(map(len, rows)) <= MAX_LINES:
        return rows
    replaced = _replace_found_tables(rows)
    return rows_of(replaced) if replaced else rows


def _replace_found_tables(rows: list[list[Line]]) -> list[Line]:
    """Return the lines, with each table as one line; an empty list where there is no table."""
    lines: list[Line] = []
    run: list[list[Line]] = []
    tables = 0
    for row in [*rows, []]:
        has_cells = len(row) > 1 and not any(line.is_table for line in row)
        continues_run = has_cells and not (run and row[0].y0 - run[-1][0].y1 > 3 * row[0].height)
        if run and not continues_run:
            table = _find_table(run)
            tables += table is not None
            lines.extend([line for each in run for line in each] if table is None else [table])
            run = []
        if has_cells:
            run.append(row)
        else:
            lines.extend(row)
    return lines if tables else []


def _find_table(rows: Sequence[Sequence[Line]]) -> Line | None:
    if len(rows) < _MIN_ROWS:
        return None
    lines = [line for row in rows for line in row]
    columns = _columns(rows)
    is_table = (
        1 < len(columns) <= _MAX_COLUMNS
        and not _is_prose(lines, columns)
        and not _is_justified(rows)
        and len(lines) >= _MIN_FILLED_SHARE * len(columns) * len(rows)
    )
    return _make_table(rows, lines, columns) if is_table else None


def _is_prose(lines: Sequence[Line], columns: Sequence[tuple[float, float]]) -> bool:
    """Return whether rows are columns of text: their lines are long, or of medium length and most
    of them as wide as their column."""
    mean_letters = sum(len(line.text) for line in lines) / len(lines)
    if not _MAX_CELL_LETTERS < mean_letters < _MIN_PROSE_LETTERS:
        return mean_letters >= _MIN_PROSE_LETTERS
    width = sum(right - left for left, right in columns) / len(columns)
    as_wide_as_column = sum(line.x1 - line.x0 > 0.75 * width for line in lines)
    return as_wide_as_column > 0.7 * len(lines)


def _is_justified(rows: Sequence[Sequence[Line]]) -> bool:
    """Return whether rows are justified text, whose words were moved apart: all rows begin and end
    alike, and the words in between are not aligned, as cells would be."""
    size = rows[0][0].size
    left = min(row[0].x0 for row in rows)
    right = max(row[-1].x1 for row in rows)
    full_rows = [
        row for row in rows if row[0].x0 - left < size / 2 and right - row[-1].x1 < size / 2
    ]
    if len(full_rows) < _MIN_JUSTIFIED_SHARE * len(rows):
        return False
    inner_count = aligned_count = 0
    for above, row in pairwise(rows):
        spans = [(line.x0, line.x1) for line in above]
        for line in row[1:-1] if len(row) > 2 else row[1:]:
            inner_count += 1
            aligned_count += line.text[:1].isdigit() or any(
                min(abs(x0 - line.x0), abs(x1 - line.x1), abs(x0 + x1 - line.x0 - line.x1) / 2)
                < _ALIGNMENT_TOLERANCE * size
                for x0, x1 in spans
            )
    return aligned_count < _MIN_ALIGNED_SHARE * inner_count


def _columns(rows: Sequence[Sequence[Line]]) -> list[tuple[float, float]]:
    """Return left and right edge of the columns, by the rows with the most cells, as a cell of
    other rows may reach over several columns."""
    column_count = max(len(row) for row in rows)
    columns: list[tuple[float, float]] = []
    lines_of_fullest = [line for row in rows if len(row) == column_count for line in row]
    for line in sorted(lines_of_fullest, key=lambda line: line.x0):
        if columns and line.x0 <= columns[-1][1]:
            columns[-1] = (columns[-1][0], max(columns[-1][1], line.x1))
        else:
            columns.append((line.x0, line.x1))
    return columns


def _make_table(
    rows: Sequence[Sequence[Line]], lines: Sequence[Line], columns: Sequence[tuple[float, float]]
) -> Line:
    markdown_rows = []
    for row in rows:
        cells = [""] * len(columns)
        column = 0
        for line in row:
            # Numbers that are aligned to the right may begin before their column does.
            while column < len(columns) - 1 and line.x0 >= columns[column][1]:
                column += 1
            cell_text = line.text.strip().replace("|", "\\|").replace("\n", " ")
            cells[column] = f"{cells[column]} {cell_text}".strip()
        markdown_rows.append(f"| {' | '.join(cells)} |")
    markdown_rows.insert(1, f"|{' --- |' * len(columns)}")
    return Line(
        min(line.x0 for line in lines),
        min(line.y0 for line in lines),
        max(line.x1 for line in lines),
        max(line.y1 for line in lines),
        "\n".join(markdown_rows),
        lines[0].size,
        is_table=True,
    )
