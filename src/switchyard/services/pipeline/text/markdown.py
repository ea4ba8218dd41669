"""Write the text of a document's pages as Markdown, from lines with their places.

The lines of a page are put into the order of reading (`layout`) and into paragraphs; lines that
repeat on every page are left out, tables become Markdown tables (`tables`) and headlines headings.
Every step takes time in proportion to n log n of a page's lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from switchyard.services.pipeline.text.layout import Line, blocks_of, facing_pages, paragraphs_of
from switchyard.services.pipeline.text.legibility import mark_controls
from switchyard.services.pipeline.text.overprint import without_copies
from switchyard.services.pipeline.text.plain_text import clean, unwrap
from switchyard.services.pipeline.text.running_heads import without_running
from switchyard.services.pipeline.text.tables import replace_tables, replace_tables_in_rows
from switchyard.services.pipeline.text.vertical_text import turn_vertical_lines

_MIN_HEADING_RATIO = 1.15
"""Ratio of the size of a line's letters to that of the text, above which the line is a heading."""
_MAX_LEVEL = 4
_MAX_HEADING_WORDS = 24
_RTL = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_UNFINISHED_END = re.compile(r"[^\W\d_][-\u2010]$|[\w,;]$")


@dataclass(frozen=True, slots=True)
class PageLines:
    """The lines of a page, and its size."""

    width: float
    height: float
    lines: Sequence[Line]
    picture_share: float = 0.0
    """Part of the page that pictures cover, 0 to 1. It is 0 where the page has more than a little
    text, whatever it shows, and where unseen text says what the pictures show."""


@dataclass(frozen=True, slots=True)
class Heading:
    """An entry of a document's own outline."""

    level: int
    """From 1."""
    title: str
    page: int
    """From 1; 0 where the file does not say."""


def compose(pages: Sequence[PageLines], outline: Sequence[Heading] = ()) -> list[str]:
    """Return the text of each page in Markdown: each paragraph is one line, with blank lines
    between."""
    pages = [replace(page, lines=without_copies(page.lines)) for page in pages]
    page_lines = without_running(pages)
    level_by_size = _levels_by_size(page_lines)
    level_by_title = {_comparison_key(entry.title): min(entry.level, 6) for entry in outline}
    return [
        _page_text(replace(page, lines=lines), level_by_size, level_by_title)
        for page, lines in zip(pages, page_lines, strict=True)
    ]


def _page_text(
    page: PageLines, level_by_size: Mapping[float, int], level_by_title: Mapping[str, int]
) -> str:
    turned_lines = turn_vertical_lines(page.lines, page.width)
    if turned_lines is not None:
        lines = turned_lines
    else:
        lines = _mirror(page) if _is_right_to_left(page.lines) else list(page.lines)
    texts: list[str] = []
    may_continue = False  # the last paragraph was cut by the end of a column
    blocks = [
        block
        for part in facing_pages(lines, page.width, page.height)
        for block in blocks_of(replace_tables(part))
    ]
    for block in blocks:
        for number, paragraph in enumerate(paragraphs_of(replace_tables_in_rows(block))):
            if paragraph[0].is_table:
                texts.append(paragraph[0].text)
                may_continue = False
                continue
            text = unwrap("\n".join(line.text for line in paragraph))
            level = _level_of(paragraph, text, level_by_size, level_by_title)
            if level:
                texts.append(f"{'#' * level} {text}")
            elif (
                number == 0
                and may_continue
                and text[:1].islower()
                and _UNFINISHED_END.search(texts[-1])
            ):
                texts[-1] = unwrap(f"{texts[-1]}\n{text}")
            elif text:
                texts.append(text)
            may_continue = not level and bool(texts)
    return "\n\n".join(texts)


# --- headings -------------------------------------------------------------------------------


def _levels_by_size(pages: Sequence[Sequence[Line]]) -> dict[float, int]:
    """Return the level of a heading by the size of its letters. The size of the body text has level
    0; other sizes that headings do not have are absent."""
    letters_by_size: dict[float, int] = {}
    for lines in pages:
        for line in lines:
            letters_by_size[line.size] = letters_by_size.get(line.size, 0) + len(line.text)
    letters_by_rounded_size: Counter[float] = Counter()
    for size, count in letters_by_size.items():
        letters_by_rounded_size[_round_size(size)] += count
    if not letters_by_rounded_size:
        return {}
    body_size = letters_by_rounded_size.most_common(1)[0][0]
    heading_sizes = sorted(
        (size for size in letters_by_rounded_size if size > _MIN_HEADING_RATIO * body_size),
        reverse=True,
    )
    level_by_size = {size: min(number, _MAX_LEVEL) for number, size in enumerate(heading_sizes, 1)}
    return level_by_size | {body_size: 0}


def _level_of(
    paragraph: Sequence[Line],
    text: str,
    level_by_size: Mapping[float, int],
    level_by_title: Mapping[str, int],
) -> int:
    """Return the level of a heading; 0 for a paragraph that is no heading."""
    if not text or len(text) > 200 or text.count(" ") >= _MAX_HEADING_WORDS or text.isdecimal():
        return 0
    if level_by_title and (level := level_by_title.get(_comparison_key(text))):
        return level
    size = _round_size(paragraph[0].size)
    if level := level_by_size.get(size, 0):
        return level if any(map(str.isalpha, text)) else 0
    is_short = len(paragraph) == 1 and text.count(" ") < 12 and text[-1] not in ".,;:!?"
    if is_short and paragraph[0].bold and size in level_by_size:
        return min(max(level_by_size.values()) + 1, 6)
    return 0


def _round_size(size: float) -> float:
    return round(size * 2) / 2


def _comparison_key(title: str) -> str:
    """Return a title for comparisons: outlines lack the numbers or the spaces that the page has."""
    return "".join(char for char in title.casefold() if char.isalpha())


# --- right to left --------------------------------------------------------------------------


def _is_right_to_left(lines: Sequence[Line]) -> bool:
    letters = "".join([line.text for line in lines])
    return not letters.isascii() and len(_RTL.findall(letters)) > len(letters) * 0.4


def _mirror(page: PageLines) -> list[Line]:
    """Mirror the page: its columns and rows are then read from the left."""
    return [replace(line, x0=page.width - line.x1, x1=page.width - line.x0) for line in page.lines]


def clean_line(text: str) -> str:
    """Clean the text of one line: control characters are marked, and all spaces are plain."""
    text = clean(text if text.isprintable() else mark_controls(text))
    return text if text.isprintable() else " ".join(text.split())
