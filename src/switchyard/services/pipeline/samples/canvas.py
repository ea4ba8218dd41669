"""Draw pages from top to bottom, column by column.

Everything drawn is recorded as a block, in reading order: the truth with which extracted text is
compared.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from switchyard.services.pipeline.samples.phrases import TextGenerator
from switchyard.services.pipeline.samples.typeface import Typeface, pymupdf

WIDTH, HEIGHT = 595.0, 842.0
"""Of a page (A4), in points, as all lengths here."""
MARGIN = 60.0
GUTTER = 24.0
"""Space between columns."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page, such as a paragraph or a table."""

    kind: str
    """heading, paragraph, table, figure, caption, footnote, box, reference, header or footer."""
    page: int
    """From 1."""
    text: str
    rows: tuple[tuple[str, ...], ...] = ()
    """The cells of a table."""
    continued: bool = False
    """Whether it continues the block of the same kind in the page or column before."""

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"kind": self.kind, "page": self.page, "text": self.text}
        if self.rows:
            value["rows"] = [list(row) for row in self.rows]
        if self.continued:
            value["continued"] = True
        return value


@dataclass(slots=True)
class _Column:
    x: float
    width: float
    bottom: float


@dataclass(slots=True)
class Canvas:
    """A document that is being drawn; `finish` ends it."""

    random: Random
    prose: TextGenerator
    columns: int = 1
    running_head: str | None = None
    size: float = 10.5
    """Size of the body's letters, in points."""
    blocks: list[Block] = field(default_factory=list)
    furniture: list[Block] = field(default_factory=list)
    """Blocks that repeat on each page, and are no part of the text."""
    _document: Any = None
    _page: Any = None
    _shape: Any = None
    _page_columns: list[_Column] = field(default_factory=list)
    _column_number: int = 0
    """Index of the column that is being filled."""
    _y: float = 0.0
    _top: float = 0.0
    """Where the page's columns begin."""
    _footnotes: list[Block] = field(default_factory=list)
    _typeface: Typeface = field(init=False)

    def __post_init__(self) -> None:
        self._document = pymupdf().open()
        self._typeface = Typeface.choose(self.random, self.prose)
        self.new_page()

    # --- pages ------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Number of the page, from 1."""
        return int(self._document.page_count)

    def new_page(self) -> None:
        self._end_page()
        self._page = self._document.new_page(width=WIDTH, height=HEIGHT)
        for face in self._typeface.faces:
            if face.file is not None:
                self._page.insert_font(fontname=face.name, fontbuffer=face.file)
        self._shape = self._page.new_shape()
        self._begin_columns(MARGIN + 20)
        if self.running_head is not None:
            furniture = (("header", self.running_head, 36.0), ("footer", str(self.number), 812.0))
            for kind, text, y in furniture:
                self._write_line(text, MARGIN, y, WIDTH - 2 * MARGIN, 8.5)
                self.furniture.append(Block(kind, self.number, text))

    def _begin_columns(self, top: float) -> None:
        width = (WIDTH - 2 * MARGIN - GUTTER * (self.columns - 1)) / self.columns
        lefts = [MARGIN + index * (width + GUTTER) for index in range(self.columns)]
        if self.prose.is_rtl:
            lefts.reverse()
        self._page_columns = [_Column(left, width, HEIGHT - MARGIN - 20) for left in lefts]
        self._column_number, self._y, self._top = 0, top, top

    def _end_page(self) -> None:
        if self._shape is not None:
            self._shape.commit()
        self.blocks.extend(self._footnotes)
        self._footnotes = []

    def _next_column(self) -> None:
        if self._column_number + 1 < len(self._page_columns):
            self._column_number += 1
            self._y = self._top
        else:
            self.new_page()

    def _ensure_room(self, height: float) -> bool:
        """Begin the next column or page if less than `height` is left in this one. Returns whether
        this one had room."""
        if self._y + height <= self._page_columns[self._column_number].bottom:
            return True
        self._next_column()
        return False

    # --- parts of the text ----------------------------------------------------------------

    def title(self, text: str, byline: str = "") -> None:
        """Write the title over all columns of the page, which begin below it."""
        for line in self._typeface.wrap(text, WIDTH - 2 * MARGIN, 19, bold=True):
            self._write_line(line, MARGIN, self._y + 19, WIDTH - 2 * MARGIN, 19, bold=True)
            self._y += 25
        self.blocks.append(Block("heading", self.number, text))
        if byline:
            self._write_line(byline, MARGIN, self._y + 11, WIDTH - 2 * MARGIN, 11)
            self._y += 20
            self.blocks.append(Block("paragraph", self.number, byline))
        self._begin_columns(self._y + 10)

    def heading(self, text: str) -> None:
        self._y += 6
        self._ensure_room(13 * 1.5 + 3 * self.size * 1.35)
        self._write_flowing("heading", text, 13, bold=True)
        self._y += 2

    def paragraph(self, text: str, kind: str = "paragraph") -> None:
        self._write_flowing(kind, text, self.size)
        self._y += self.size * 0.7

    def footnote(self, mark: str, text: str) -> None:
        """Write a footnote at the foot of the column; leave it out where there is no room."""
        column = self._page_columns[self._column_number]
        lines = self._typeface.wrap(f"{mark} {text}", column.width, 8)
        height = len(lines) * 10 + 8
        if self._y + height + 60 > column.bottom:
            return
        column.bottom -= height
        y = column.bottom + 6
        self._shape.draw_line((column.x, y - 4), (column.x + 60, y - 4))
        self._shape.finish(width=0.4)
        for line in lines:
            y += 10
            self._write_line(line, column.x, y, column.width, 8)
        self._footnotes.append(Block("footnote", self.number, f"{mark} {text}"))

    def box(self, heading: str, text: str) -> None:
        """Draw a shaded box in the column."""
        column = self._page_columns[self._column_number]
        size, inner = 9.0, column.width - 16
        lines = self._typeface.wrap(text, inner, size)
        height = 24 + len(lines) * size * 1.35
        if not self._ensure_room(height):
            column = self._page_columns[self._column_number]
        frame = (column.x, self._y, column.x + column.width, self._y + height)
        self._shape.draw_rect(pymupdf().Rect(frame))
        self._shape.finish(fill=(0.92, 0.94, 0.97), color=(0.6, 0.6, 0.7), width=0.5)
        y = self._y + 14
        self._write_line(heading, column.x + 8, y, inner, 10, bold=True)
        for line in lines:
            y += size * 1.35
            self._write_line(line, column.x + 8, y, inner, size)
        self.blocks.append(Block("box", self.number, f"{heading}\n{text}"))
        self._y += height + 10

    def table(self, caption: str, rows: Sequence[Sequence[str]], *, ruled: bool) -> None:
        """Draw a table. Its first row is its head, which is repeated where the table goes on in the
        next column or page."""
        self._ensure_room(60)
        if caption:
            self._write_flowing("caption", caption, 9)
        head_row, rows_left, continued = rows[0], list(rows[1:]), False
        while rows_left:
            column = self._page_columns[self._column_number]
            rows_that_fit = int((column.bottom - self._y) // 16) - 1
            if rows_that_fit < 1:
                self._next_column()
                continue
            rows_here, rows_left = rows_left[:rows_that_fit], rows_left[rows_that_fit:]
            table_rows = [tuple(head_row), *(tuple(row) for row in rows_here)]
            self._draw_grid(table_rows, column, ruled)
            text = "\n".join(" ".join(row) for row in table_rows)
            self.blocks.append(Block("table", self.number, text, tuple(table_rows), continued))
            continued = True
            if rows_left:
                self._next_column()
        self._y += 12

    def _draw_grid(self, rows: Sequence[Sequence[str]], column: _Column, ruled: bool) -> None:
        width_shares = [0.4, *([0.6 / (len(rows[0]) - 1)] * (len(rows[0]) - 1))]
        for number, row in enumerate(rows):
            x = column.x + (column.width if self.prose.is_rtl else 0)
            for share, cell in zip(width_shares, row, strict=True):
                cell_width = share * column.width
                left = x - cell_width if self.prose.is_rtl else x
                self._write_line(cell, left + 3, self._y + 11, cell_width - 6, 9, bold=number == 0)
                if ruled:
                    frame = (left, self._y, left + cell_width, self._y + 16)
                    self._shape.draw_rect(pymupdf().Rect(frame))
                    self._shape.finish(width=0.5)
                x = left if self.prose.is_rtl else x + cell_width
            self._y += 16

    def figure(self, draw: Callable[[Any, Any, Any], list[str]], caption: str) -> None:
        """Draw a figure by `draw` (page, shape, frame), which returns the words on it, and write
        its caption below."""
        column = self._page_columns[self._column_number]
        if not self._ensure_room(190):
            column = self._page_columns[self._column_number]
        frame = pymupdf().Rect(column.x + 4, self._y, column.x + column.width - 4, self._y + 150)
        labels = draw(self._page, self._shape, frame)
        self.blocks.append(Block("figure", self.number, " ".join(labels)))
        self._y += 156
        self._write_flowing("caption", caption, 9)
        self._y += 10

    def gap(self, height: float) -> None:
        self._y += height

    # --- letters ----------------------------------------------------------------------------

    def _write_flowing(self, kind: str, text: str, size: float, *, bold: bool = False) -> None:
        """Write lines one below the other, and go on in the next columns and pages."""
        leading = size * 1.35
        lines = self._typeface.wrap(
            text, self._page_columns[self._column_number].width, size, bold=bold
        )
        lines_here: list[str] = []
        continued = False
        position = (self.number, self._column_number)
        for line in lines:
            self._ensure_room(leading)
            if (self.number, self._column_number) != position and lines_here:
                self.blocks.append(
                    Block(kind, position[0], self._typeface.join_lines(lines_here), (), continued)
                )
                lines_here, continued = [], True
            position = (self.number, self._column_number)
            column = self._page_columns[self._column_number]
            self._write_line(line, column.x, self._y + size, column.width, size, bold=bold)
            self._y += leading
            lines_here.append(line)
        self.blocks.append(
            Block(kind, position[0], self._typeface.join_lines(lines_here), (), continued)
        )

    def _write_line(
        self, line: str, x: float, y: float, width: float, size: float, *, bold: bool = False
    ) -> None:
        """Write one line, with its baseline at `y`."""
        text = line.replace("\u00ad", "-")
        if self.prose.is_rtl and text.isascii():
            x += width - self._typeface.length(text, size, bold)
        if not self.prose.is_rtl or text.isascii():
            font = self._typeface.face(bold).name
            self._shape.insert_text((x, y), text, fontname=font, fontsize=size)
            return
        # To MuPDF, "left" is where a line begins, which is on the right with `rtl`.
        style = f"margin:0;text-align:left;font-size:{size}px;font-weight:{700 if bold else 400}"
        box = pymupdf().Rect(x - 2, y - size * 1.2, x + width, y + size)
        self._page.insert_htmlbox(box, f'<p dir="rtl" style="{style}">{html.escape(text)}</p>')

    # --- the end --------------------------------------------------------------------------

    def finish(self, title: str, author: str) -> Any:
        """Finish drawing, and return the document."""
        self._end_page()
        self._shape = None
        # No dates: with them, each run would make other bytes, and so another document.
        self._document.set_metadata({"title": title, "author": author})
        self._document.subset_fonts()
        return self._document
