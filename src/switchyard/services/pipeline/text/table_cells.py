"""Divide lines of a PDF that hold several cells of a table: padded with blanks, or too near to one
another.

Extractors join words that stand close together. Here a line is divided where a space runs down
through rows that follow one another, and is wider than the spaces between words, or stands before
numbers. Whether the parts are a table or columns of text is decided afterwards, by `tables` and
`layout`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from statistics import median

from switchyard.services.pipeline.text.layout import MAX_LINES, Line, rows_of

PADDING = re.compile(r"\S[ \u00a0]{3,}(?:\S|$)")
"""Blanks that separate cells within a line, or fill its end."""
MIN_ROWS = 3
_MAX_WORDS = 60
"""Most words of a line, and most spaces of a row; longer lines are not divided."""
_MAX_BANDS = 9
"""A line that is higher than this many usual lines is upright print: it is looked for only in its
first bands."""
_BLANK_WIDTH = 0.28
"""Width of a blank in ems (font sizes), where letters are not all of the same width."""
_WIDE_DIGIT = 0.59
"""Width in ems from which on a digit is as wide as a typewriter's."""
_MIN_PADDING_BLANKS = 2.9
"""Fewest blanks between padded cells."""
_MIN_NUMBER_BLANKS = 1.4
"""Fewest blanks between numbers of two cells."""
_MIN_COMMON_BLANKS = 0.9
"""Smallest width that the spaces of all rows have in common, in blanks."""
_MIN_WIDTH_RATIO = 1.8
"""A space between cells is at least this many times as wide as the narrowest of its line: in
justified text all spaces are wide."""
_MIN_BLANKS_BEFORE_NUMBERS = 1.8
"""Fewest blanks between a cell of words and a cell of numbers."""
_MIN_SHARE_OF_ROWS = 0.75
"""Smallest share of a river's rows (`_River`) in which the space must look like one between
cells."""
_MAX_MEAN_CELL_LETTERS = 28
"""Letters of a cell, on average, up to which lines side by side may be a table."""
_NUMBER = re.compile(
    r"[-+–−(<>~±$€£¥]*\d[\d.,:/'’%)*†‡°±–-]*[a-z]?|[-–—.$€£¥]|n/?a\.?", re.IGNORECASE
)
_CURRENCY = "$€£¥"
_THOUSANDS_GROUP = re.compile(r"\d{3}(?:[.,]\d+)?")
_PAIR = re.compile(r"\d[%)*]*\s+[-+–−(]?\d")
_CODE_END = re.compile(r"[;{},\\]$")
_COMMENT = re.compile(r"//|/\*|#|--")
_SENTENCE_ENDS = ".!?:"
"""Characters behind which two blanks are usual."""


@dataclass(slots=True)
class Word:
    """A word of a page, as the page is shown."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str


def with_cells(
    lines: Sequence[Line], words: Callable[[], Iterable[Word]], *, are_padded: bool
) -> list[Line]:
    """Return the lines of a page, with those divided that hold several cells.

    `words` returns all words of the page, and is only called where there may be such lines;
    `are_padded` says that there may be padded lines.
    """
    if not MIN_ROWS <= len(lines) <= MAX_LINES:
        return list(lines)
    rows_of_page = rows_of(lines)
    likely_rows = rows_of_page if are_padded else _likely_rows(rows_of_page)
    if not likely_rows:
        return list(lines)
    rows = _rows(likely_rows, words())
    parts = _padded_parts(rows)
    cuts: defaultdict[int, set[int]] = defaultdict(set)
    for river in _rivers(rows):
        if river.is_between_cells:
            for space in river.spaces:
                if space.line is not None:
                    cuts[id(space.line.line)].add(space.position)
    for row in rows:
        for each in row.lines:
            if each.words and id(each.line) not in parts:
                parts[id(each.line)] = each.cut(sorted(cuts[id(each.line)]))
    return [part for line in lines for part in parts.get(id(line), (line,))]


def _likely_rows(rows: Sequence[list[Line]]) -> list[list[Line]]:
    """Return the rows that may be of a table with numbers of several cells in one line: runs of at
    least MIN_ROWS rows."""
    likely_rows: list[list[Line]] = []
    run: list[list[Line]] = []
    has_pair = False
    for row in [*rows, []]:
        is_pair = any(_PAIR.search(line.text) is not None for line in row)
        if is_pair or (
            len(row) > 1 and sum(len(line.text) for line in row) < _MAX_MEAN_CELL_LETTERS * len(row)
        ):
            run.append(row)
            has_pair = has_pair or is_pair
            continue
        if len(run) >= MIN_ROWS and has_pair:
            likely_rows += run
        run, has_pair = [], False
    return likely_rows


@dataclass(slots=True)
class _LineOfWords:
    line: Line
    words: list[Word]

    @property
    def x0(self) -> float:
        return self.words[0].x0 if self.words else self.line.x0

    @property
    def x1(self) -> float:
        return self.words[-1].x1 if self.words else self.line.x1

    def cut(self, positions: Sequence[int]) -> list[Line]:
        """Return the parts of the line, cut before the words with these numbers. Each is as wide as
        its words, as the line may end in blanks."""
        cells = []
        start = 0
        for first, last in pairwise([0, *positions, len(self.words)]):
            words = self.words[first:last]
            end = _end_of(self.line.text, start, sum(len(word.text) for word in words))
            x0, x1 = words[0].x0, max(word.x1 for word in words)
            cells.append(replace(self.line, x0=x0, x1=x1, text=self.line.text[start:end].strip()))
            start = end
        return cells


def _end_of(text: str, start: int, letters: int) -> int:
    """Return the index behind the next `letters` letters of a text."""
    for index in range(start, len(text)):
        if letters == 0:
            return index
        letters -= not text[index].isspace()
    return len(text)


@dataclass(slots=True)
class _Space:
    """A space between two words of a row."""

    x0: float
    x1: float
    left: str
    right: str
    line: _LineOfWords | None
    """The line that the space is in; None between two lines."""
    position: int
    """Number of the word to its right in that line."""
    blanks: float
    """Its width, in blanks."""
    is_padding: bool
    """Whether the space is wide, wider than the spaces between the words of its line, and none of
    these is stretched."""


@dataclass(slots=True)
class _Row:
    lines: list[_LineOfWords]
    spaces: list[_Space]
    x0: float
    x1: float
    y0: float
    y1: float
    blank: float


def _rows(line_rows: Sequence[Sequence[Line]], words: Iterable[Word]) -> list[_Row]:
    words_by_line = _words_by_line([line for row in line_rows for line in row], words)
    rows = [
        [_LineOfWords(line, words_by_line.get(id(line), [])) for line in row] for row in line_rows
    ]
    widths = [_monospace_width(row) for row in rows]
    known_widths = [width for width in widths if width is not None]
    usual_width = median(known_widths) if 2 * len(known_widths) > len(rows) else _BLANK_WIDTH
    cell_rows = []
    for row, width in zip(rows, widths, strict=True):
        blank = max((width or usual_width) * max(each.line.size for each in row), 0.1)
        cell_rows.append(
            _Row(
                row,
                _spaces(row, blank),
                min(each.x0 for each in row),
                max(each.x1 for each in row),
                min(each.line.y0 for each in row),
                max(each.line.y1 for each in row),
                blank,
            )
        )
    return cell_rows


def _monospace_width(row: Sequence[_LineOfWords]) -> float | None:
    """Return the width of a letter in ems if all letters of the row are equally wide (a blank,
    too); else None."""
    words = [word for each in row for word in each.words]
    size = max(each.line.size for each in row)
    widths = [(word.x1 - word.x0) / len(word.text) for word in words]
    if len(words) < 2 or size <= 0 or max(widths) > 1.02 * min(widths):
        return None
    width = min(widths) / size
    # Digits are of one width in most fonts.
    has_letters = any(len(word.text) > 2 and word.text.isalpha() for word in words)
    return max(width, _BLANK_WIDTH) if has_letters or width > _WIDE_DIGIT else None


def _words_by_line(lines: Sequence[Line], words: Iterable[Word]) -> dict[int, list[Word]]:
    """Return the words of each line, by the line's id(). A line is left out if its words have not
    as many letters as the line."""
    band_height = max(median(line.height for line in lines), 1.0)
    lines_by_band: defaultdict[int, list[Line]] = defaultdict(list)
    for line in lines:
        first = int(line.y0 // band_height)
        for band in range(first, min(int(line.y1 // band_height), first + _MAX_BANDS) + 1):
            lines_by_band[band].append(line)
    words_by_line: defaultdict[int, list[Word]] = defaultdict(list)
    for word in words:
        x, y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
        for line in lines_by_band.get(int(y // band_height), ()):
            if line.y0 <= y <= line.y1 and line.x0 - 1 <= x <= line.x1 + 1:
                words_by_line[id(line)].append(word)
                break
    complete_lines = {}
    for line in lines:
        line_words = words_by_line.get(id(line), [])
        if 0 < len(line_words) <= _MAX_WORDS:
            line_words.sort(key=lambda word: word.x0)
            letters = len("".join(line.text.split()))
            if letters == sum(len(word.text) for word in line_words):
                complete_lines[id(line)] = line_words
    return complete_lines


def _spaces(lines: Sequence[_LineOfWords], blank: float) -> list[_Space]:
    """Return the spaces of a row that may be between cells."""
    spaces: list[_Space] = []
    for each in lines:
        pairs = list(pairwise(each.words))
        gaps = [(b.x0 - a.x1) / blank for a, b in pairs]
        has_stretched = any(
            _MIN_NUMBER_BLANKS <= blanks < _MIN_PADDING_BLANKS and a.text[-1] not in _SENTENCE_ENDS
            for (a, _), blanks in zip(pairs, gaps, strict=True)
        )
        narrowest = min(gaps, default=0.0)
        for index, ((a, b), blanks) in enumerate(zip(pairs, gaps, strict=True), 1):
            if a.text in _CURRENCY:  # the number behind it is in the same cell
                continue
            is_pair = _is_number(a.text) and _is_number(b.text)
            if blanks < (_MIN_COMMON_BLANKS if is_pair else _MIN_NUMBER_BLANKS):
                continue
            is_code = _CODE_END.search(a.text) or _COMMENT.match(b.text)
            is_wider = (
                narrowest >= _MIN_PADDING_BLANKS
                or blanks > _MIN_WIDTH_RATIO * max(narrowest, 0.5)
                or len(gaps) == 1
            )
            is_padding = (
                blanks >= _MIN_PADDING_BLANKS and is_wider and not has_stretched and not is_code
            )
            spaces.append(_Space(a.x1, b.x0, a.text, b.text, each, index, blanks, is_padding))
    for left_line, right_line in pairwise(lines):
        left = left_line.words[-1].text if left_line.words else left_line.line.text
        right = right_line.words[0].text if right_line.words else right_line.line.text
        x0, x1 = left_line.x1, right_line.x0
        blanks = (x1 - x0) / blank
        if blanks >= _MIN_COMMON_BLANKS:
            spaces.append(
                _Space(x0, x1, left, right, None, 0, blanks, blanks >= _MIN_PADDING_BLANKS)
            )
    spaces.sort(key=lambda space: space.x0)
    return spaces[:_MAX_WORDS]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


@dataclass(slots=True)
class _River:
    """A space that runs down through rows."""

    x0: float
    x1: float
    spaces: list[_Space] = field(default_factory=list)

    @property
    def is_between_cells(self) -> bool:
        spaces = self.spaces
        if len(spaces) < MIN_ROWS or all(space.line is None for space in spaces):
            return False
        enough_rows = _MIN_SHARE_OF_ROWS * len(spaces)
        usual_blanks = median(space.blanks for space in spaces)
        numbers_right = sum(_is_number(space.right) for space in spaces)
        numbers_left = sum(_is_number(space.left) for space in spaces)
        if numbers_right >= enough_rows and (
            numbers_left >= enough_rows or numbers_left <= len(spaces) - enough_rows
        ):
            are_thousands = all(
                _THOUSANDS_GROUP.fullmatch(space.right) and space.left[-1:].isdigit()
                for space in spaces
            )
            if are_thousands:
                return usual_blanks >= _MIN_PADDING_BLANKS
            return usual_blanks >= (
                _MIN_NUMBER_BLANKS if numbers_left >= enough_rows else _MIN_BLANKS_BEFORE_NUMBERS
            )
        return sum(space.is_padding for space in spaces) >= enough_rows

    def follow_into(self, row: _Row) -> bool:
        """Follow the river into a row. Returns whether it runs through the row."""
        min_width = _MIN_COMMON_BLANKS * row.blank
        widest = max(row.spaces, key=self._common_width, default=None)
        if widest is not None and self._common_width(widest) >= min_width:
            self.x0, self.x1 = max(self.x0, widest.x0), min(self.x1, widest.x1)
            self.spaces.append(widest)
            return True
        if row.x1 <= self.x1 - min_width:  # the row ends before it
            self.x0 = max(self.x0, row.x1)
            return True
        if row.x0 >= self.x0 + min_width:  # the row begins behind it
            self.x1 = min(self.x1, row.x0)
            return True
        return False

    def _common_width(self, space: _Space) -> float:
        return min(self.x1, space.x1) - max(self.x0, space.x0)


def _rivers(rows: Sequence[_Row]) -> list[_River]:
    """Find the spaces that run down through several rows."""
    rivers: list[_River] = []
    active: list[_River] = []
    previous_row: _Row | None = None
    for row in rows:
        if previous_row is not None and row.y0 - previous_row.y1 > 3 * (row.y1 - row.y0):
            active = []
        active = [river for river in active if river.follow_into(row)]
        followed_spaces = {id(river.spaces[-1]) for river in active}
        new_rivers = [
            _River(space.x0, space.x1, [space])
            for space in row.spaces
            if id(space) not in followed_spaces
        ]
        active += new_rivers
        rivers += new_rivers
        previous_row = row
    return rivers


def _padded_parts(rows: Sequence[_Row]) -> dict[int, list[Line]]:
    """Return the cells of lines that follow one another and have the same number of padded cells,
    by the line's id(). Cells in proportional fonts may not line up: they are moved into columns."""
    parts_by_line: dict[int, list[Line]] = {}
    for count, run in groupby(rows, _count_padding):
        padded_rows = list(run) if count else []
        if len(padded_rows) >= MIN_ROWS:
            cut_rows = [
                row.lines[0].cut([space.position for space in _padding_spaces(row)])
                for row in padded_rows
            ]
            for row, cells in zip(padded_rows, _separate_columns(cut_rows), strict=True):
                parts_by_line[id(row.lines[0].line)] = cells
    return parts_by_line


def _count_padding(row: _Row) -> int:
    return len(_padding_spaces(row)) if len(row.lines) == 1 else 0


def _padding_spaces(row: _Row) -> list[_Space]:
    return [space for space in row.spaces if space.is_padding]


def _separate_columns(cells: Sequence[Sequence[Line]]) -> list[list[Line]]:
    """Return the cells of rows, moved where a column would reach into the next one."""
    columns = [
        (min(cell.x0 for cell in column), max(cell.x1 for cell in column))
        for column in zip(*cells, strict=True)
    ]
    if all(a[1] < b[0] for a, b in pairwise(columns)):
        return [list(row) for row in cells]
    left = columns[0][0]
    step = (max(right for _, right in columns) - left) / len(columns)
    return [
        [
            replace(cell, x0=left + number * step, x1=left + (number + 0.9) * step)
            for number, cell in enumerate(row)
        ]
        for row in cells
    ]
