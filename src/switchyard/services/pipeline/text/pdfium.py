"""Read PDFs with PDFium (Apache-2.0 and BSD), for those who can't use PyMuPDF and its AGPL.

The same protocol as `mupdf`. PDFium does not say whether it has repaired a file.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from switchyard.services.common.files.errors import CorruptDocument, EncryptedDocument
from switchyard.services.pipeline.text.bidi import (
    RIGHT_TO_LEFT,
    Glyph,
    text_from_left,
    text_in_order,
)
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import Heading, PageLines, clean_line
from switchyard.services.pipeline.text.overprint import cell_of, have_copies, is_copied
from switchyard.services.pipeline.text.pdf_pages import (
    NEEDS_PASSWORD,
    Box,
    Drawn,
    Limits,
    OpenPdf,
    check_count,
    check_pixels,
    has_end,
    is_sparse,
    picture_share,
    shrink_factor,
    with_open_pages,
)
from switchyard.services.pipeline.text.superscripts import SIGNS, is_raised, raised
from switchyard.services.pipeline.text.table_cells import MIN_ROWS, Word, with_cells
from switchyard.services.pipeline.text.xfa import MAX_PACKET_BYTES, text_of_form

_BOLD_WEIGHT = 600
"""Weight from which letters are bold."""
_SOFT_HYPHEN = "\x02"
"""PDFium's replacement for a hyphen at a line's end."""
_MIN_LINE_GAP = 1.5
"""Smallest distance of two lines of a row of text from right to left, in sizes of a letter."""
_MAX_LETTER_GAP = 0.2
"""Largest distance of two letters of a word, in heights of a letter."""
_WIDE_LETTER = 0.58
"""Mean width of a line's letters and blanks, in sizes of a letter, above which they are wide."""
_WIDER_LETTER = 1.15
"""Wide letters are this many times as wide as those on most lines of the page."""
_FIRST_EAST_ASIAN = "\u2e80"
_MAX_ZERO_WIDTH = 0.01
_MAX_RECTANGLES = 200_000
_MAX_PARTS = 100
"""Parts of a form that are read."""
_MAX_NAME = 256
"""Bytes of the name of such a part."""
_MAX_OBJECTS = 20_000
"""Objects of a page whose places are read."""


@contextmanager
def opening(data: bytes, limits: Limits) -> Iterator[OpenPdf]:
    """Open a PDF as `pdf.Extractor` says."""
    if not has_end(data):
        # PDFium finds some of the pages in such a file; half a document must not count as whole.
        raise CorruptDocument(f"the PDF is truncated: it ends after {len(data):,} bytes")
    with _open_pdf(data) as document:
        check_count(len(document), limits)
        yield _Pdf(document, limits)


@dataclass(frozen=True, slots=True)
class _Pdf:
    """See `pdf_pages.OpenPdf`."""

    document: Any
    limits: Limits

    @property
    def page_count(self) -> int:
        return len(self.document)

    @property
    def repaired(self) -> bool:
        return False

    @property
    def outline(self) -> list[Heading]:
        return _read_outline(self.document)

    @property
    def form(self) -> str | None:
        from pypdfium2 import raw

        if raw.FPDF_GetFormType(self.document) != raw.FORMTYPE_XFA_FULL:
            return None
        count = min(raw.FPDF_GetXFAPacketCount(self.document), _MAX_PARTS)
        packets = dict(_xfa_part(self.document, number) for number in range(count))
        return text_of_form(packets)

    @property
    def metadata(self) -> dict[str, str]:
        fields = self.document.get_metadata_dict()
        return {
            name[:1].lower() + name[1:]: value
            for name, value in fields.items()
            if isinstance(value, str)
        }

    def page(self, number: int) -> PageLines:
        with _translate_errors(f"page {number}"):
            page = self.document[number - 1]
            try:
                width, height = _size(page, number, self.limits)
                visible = _VisibleArea(page.get_bbox(), page.get_rotation())
                lines = _lines(page, visible)
                has_place = is_sparse(width, height, lines)
                drawn = _drawn_parts(page, visible) if has_place else ()
                share = picture_share(width, height, drawn)
                return PageLines(width, height, lines, share)
            finally:
                page.close()

    def draw(self, number: int, *, dpi: int, side: int, area: int = 0) -> Any:
        with _translate_errors(f"page {number}"):
            page = self.document[number - 1]
            try:
                width, height = _size(page, number, self.limits)
                zoom = dpi / 72 * shrink_factor(width * dpi / 72, height * dpi / 72, side, area)
                bitmap = page.render(scale=zoom, rev_byteorder=True, prefer_bgrx=False)
                picture = bitmap.to_numpy()
                if picture.ndim == 2:
                    picture = picture[:, :, None].repeat(3, axis=2)
                return picture[:, :, :3].copy()
            finally:
                page.close()


@dataclass(frozen=True, slots=True)
class _VisibleArea:
    """The part of a page that is shown."""

    part: Box
    """In the file's coordinates, in which y grows upwards: left, bottom, right, top."""
    rotation: int
    """Degrees by which the page is turned to the right when it is shown."""

    def clip(self, box: Box) -> Box | None:
        """Cut a box of the file to the part that is shown; None if no part is."""
        x0, y0 = max(box[0], self.part[0]), max(box[1], self.part[1])
        x1, y1 = min(box[2], self.part[2]), min(box[3], self.part[3])
        return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None

    def to_page(self, box: Box) -> Box:
        """Return where a box is on the page as it is shown: left, upper, right, lower."""
        (x_start, y_start), (x_end, y_end) = (
            self._point_on_page(*box[:2]),
            self._point_on_page(*box[2:]),
        )
        return min(x_start, x_end), min(y_start, y_end), max(x_start, x_end), max(y_start, y_end)

    def _point_on_page(self, x: float, y: float) -> tuple[float, float]:
        left, bottom, right, top = self.part
        if self.rotation == 90:
            return y - bottom, x - left
        if self.rotation == 180:
            return right - x, y - bottom
        if self.rotation == 270:
            return top - y, right - x
        return x - left, top - y

    def start_of_line(self, box: Box) -> tuple[float, float]:
        """Return the point at which a line that is shown level begins, in the file's
        coordinates."""
        left, bottom, right, top = box
        if self.rotation in (0, 180):
            return (left + 0.5 if self.rotation == 0 else right - 0.5), (bottom + top) / 2
        return (left + right) / 2, (bottom + 0.5 if self.rotation == 90 else top - 0.5)


def _size(page: Any, number: int, limits: Limits) -> tuple[float, float]:
    """Return width and height of a page, in points. Raises DocumentTooLarge."""
    width, height = page.get_size()
    check_pixels(number, [("", width * 150 / 72, height * 150 / 72)], limits)
    return width, height


@contextmanager
def _open_pdf(data: bytes) -> Iterator[Any]:
    import pypdfium2

    library: Any = pypdfium2
    try:
        document = library.PdfDocument(with_open_pages(data))
    except library.PdfiumError as error:
        if "assword" in str(error):
            raise EncryptedDocument(NEEDS_PASSWORD) from error
        missing_end = "" if has_end(data) else ", and its end is missing"
        raise CorruptDocument(
            f"the PDF is corrupt: it can't be read{missing_end} ({error})"
        ) from error
    try:
        yield document
    finally:
        document.close()


@contextmanager
def _translate_errors(part: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, LookupError) as error:
        raise CorruptDocument(f"the PDF is corrupt: {part} can't be read ({error})") from error


def _lines(page: Any, visible: _VisibleArea) -> list[Line]:
    """Return a page's lines: its rectangles of text, with those of one line joined."""
    from pypdfium2 import raw

    text = page.get_textpage()
    try:
        lines: list[Line] = []
        for number in range(min(text.count_rects(), _MAX_RECTANGLES)):
            box = visible.clip(text.get_rect(number))
            if box is None:
                continue
            text_in_box = text.get_text_bounded(*box).rstrip("\r\n")
            text_in_box = clean_line(text_in_box.replace(_SOFT_HYPHEN, "-"))
            if not text_in_box:
                continue
            char_index = raw.FPDFText_GetCharIndexAtPos(text, *visible.start_of_line(box), 4, 4)
            left, upper, right, lower = visible.to_page(box)
            size = raw.FPDFText_GetFontSize(text, char_index) if char_index >= 0 else lower - upper
            bold = char_index >= 0 and raw.FPDFText_GetFontWeight(text, char_index) >= _BOLD_WEIGHT
            # A rectangle is as high as its letters, and lower where none of them is as high as b.
            middle, half_height = (upper + lower) / 2, max(0.4 * size, (lower - upper) / 2)
            line = Line(
                left, middle - half_height, right, middle + half_height, text_in_box, size, bold
            )
            if lines and _continues_line(lines[-1], line):
                lines[-1] = _join_lines(lines[-1], line)
            else:
                lines.append(line)
        has_rtl = any(RIGHT_TO_LEFT.search(line.text) for line in lines if not line.text.isascii())
        if has_rtl or have_copies(lines):
            return list(_lines_by_glyphs(text, visible))
        return with_cells(lines, lambda: _words(text, visible), are_padded=_may_be_padded(lines))
    finally:
        text.close()


def _may_be_padded(lines: Sequence[Line]) -> bool:
    """Return whether there are lines that are too wide for their text. They may be padded: where
    there are several blanks in a row, the library returns only the first."""
    letter_widths = [
        (line.x1 - line.x0) / (len(line.text) * max(line.size, 1.0))
        for line in lines
        if " " in line.text and max(line.text) < _FIRST_EAST_ASIAN
    ]
    if not letter_widths:
        return False
    wide_letter = min(_WIDE_LETTER, _WIDER_LETTER * median(letter_widths))
    return sum(width > wide_letter for width in letter_widths) >= MIN_ROWS


def _words(text: Any, visible: _VisibleArea) -> Iterator[Word]:
    """Yield the words of a page, which blanks, other rows and spaces between letters divide."""
    from pypdfium2 import raw

    word: Word | None = None
    for number in range(min(text.count_chars(), _MAX_RECTANGLES)):
        char = chr(raw.FPDFText_GetUnicode(text, number))
        box = None if char.isspace() else visible.clip(text.get_charbox(number, loose=True))
        if box is None:
            if word is not None:
                yield word
            word = None
            continue
        x0, y0, x1, y1 = visible.to_page(box)
        char = "-" if char == _SOFT_HYPHEN else char
        tolerance = _MAX_LETTER_GAP * (y1 - y0)
        if (
            word is not None
            and y0 < word.y1
            and word.y0 < y1
            and -tolerance < x0 - word.x1 < tolerance
        ):
            word.x1, word.text = max(word.x1, x1), word.text + char
            continue
        if word is not None:
            yield word
        word = Word(x0, y0, x1, y1, char)
    if word is not None:
        yield word


def _drawn_parts(page: Any, visible: _VisibleArea) -> Iterator[Drawn]:
    """Yield pictures, without decoding any, and texts in the order in which they are drawn."""
    from pypdfium2 import raw

    kinds = [raw.FPDF_PAGEOBJ_IMAGE, raw.FPDF_PAGEOBJ_TEXT]
    for each in islice(page.get_objects(filter=kinds), _MAX_OBJECTS):
        is_picture = each.type == raw.FPDF_PAGEOBJ_IMAGE
        is_seen = is_picture or (
            raw.FPDFTextObj_GetTextRenderMode(each.raw) != raw.FPDF_TEXTRENDERMODE_INVISIBLE
        )
        yield Drawn(visible.to_page(each.get_bounds()), is_picture, is_seen)


def _lines_by_glyphs(text: Any, visible: _VisibleArea) -> Iterator[Line]:
    """Yield the lines of a page with letters from right to left, or with print drawn several times
    over, in order by their places: the library's own pieces overlap there."""
    from pypdfium2 import raw

    seen_cells: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)
    row: list[tuple[Glyph, float, float, float]] = []
    for number in range(min(text.count_chars(), _MAX_RECTANGLES)):
        char = chr(raw.FPDFText_GetUnicode(text, number))
        box = None if char in "\r\n" else visible.clip(text.get_charbox(number, loose=True))
        if box is None:
            continue
        x0, y0, x1, y1 = visible.to_page(box)
        if char == _SOFT_HYPHEN:
            char = "-"
        size = raw.FPDFText_GetFontSize(text, number) or y1 - y0
        if row and x1 > x0 and _box_of(row[-1]) == (x0, y0, x1, y1):
            # A glyph of several letters, which the library gives from left to right.
            line_text = row[-1][0].text
            line_text = char + line_text if RIGHT_TO_LEFT.match(char) else line_text + char
            row[-1] = (Glyph(line_text, x0, x1), y0, y1, size)
            continue
        is_blank = char.isspace()
        if (is_blank and x1 - x0 < _MAX_ZERO_WIDTH) or is_copied((x0, y0), size, seen_cells[char]):
            continue  # the library adds blanks of its own, without a place
        if not is_blank:
            seen_cells[char].add(cell_of((x0, y0), size))
        if row and min(row[-1][2], y1) - max(row[-1][1], y0) < 0.5 * min(
            row[-1][2] - row[-1][1], y1 - y0
        ):
            yield from _divide_row(row)
            row = []
        row.append((Glyph(char, x0, x1), y0, y1, size))
    yield from _divide_row(row)


def _box_of(glyph: tuple[Glyph, float, float, float]) -> Box:
    return glyph[0].x0, glyph[1], glyph[0].x1, glyph[2]


def _divide_row(row: list[tuple[Glyph, float, float, float]]) -> Iterator[Line]:
    """Yield the lines of a row, divided at wide spaces."""
    row.sort(key=lambda each: each[0].x0)
    start = 0
    for index in range(1, len(row) + 1):
        if (
            index < len(row)
            and row[index][0].x0 - row[index - 1][0].x1 < _MIN_LINE_GAP * row[index][3]
        ):
            continue
        glyphs_of_line = row[start:index]
        start = index
        if not glyphs_of_line:
            continue
        glyphs, tops, bottoms, sizes = zip(*glyphs_of_line, strict=True)
        glyph_text = "".join(glyph.text for glyph in glyphs)
        is_rtl = RIGHT_TO_LEFT.search(glyph_text) is not None
        glyph_text = (text_in_order if is_rtl else text_from_left)(glyphs, sizes[0])
        if glyph_text := clean_line(glyph_text):
            right = max(glyph.x1 for glyph in glyphs)
            yield Line(glyphs[0].x0, min(tops), right, max(bottoms), glyph_text, sizes[0])


def _continues_line(before: Line, line: Line) -> bool:
    shared_height = min(before.y1, line.y1) - max(before.y0, line.y0)
    gap = line.x0 - before.x1
    return shared_height > 0.6 * min(before.height, line.height) and -1 < gap < 0.6 * line.size


def _join_lines(before: Line, line: Line) -> Line:
    # Digits reach up from the baseline, as the boxes here do.
    first, second = before.text, line.text
    if is_raised(line.size, line.y1, before.size, before.y1):
        second = raised(second)
    elif is_raised(before.size, before.y1, line.size, line.y1):
        first = raised(first)
    if second != line.text:
        separator = ""
    elif first[-1:] in SIGNS:
        separator = "" if second[:1] in ".,;:!?)]" else " "
    else:
        separator = " " if line.x0 - before.x1 > 0.12 * line.size else ""
    return Line(
        before.x0,
        min(before.y0, line.y0),
        line.x1,
        max(before.y1, line.y1),
        f"{first}{separator}{second}",
        max(before.size, line.size),
        before.bold and line.bold,
    )


def _xfa_part(document: Any, number: int) -> tuple[str, bytes]:
    """Return the name and the content of a part of an XFA form."""
    from pypdfium2 import raw

    name = ctypes.create_string_buffer(_MAX_NAME)
    raw.FPDF_GetXFAPacketName(document, number, name, _MAX_NAME)
    size = ctypes.c_ulong()
    raw.FPDF_GetXFAPacketContent(document, number, None, 0, size)
    if size.value > MAX_PACKET_BYTES:
        return name.value.decode("latin-1"), b""
    content = ctypes.create_string_buffer(size.value)
    raw.FPDF_GetXFAPacketContent(document, number, content, size.value, size)
    return name.value.decode("latin-1"), content.raw


def _read_outline(document: Any) -> list[Heading]:
    headings: list[Heading] = []
    try:
        for entry in document.get_toc(max_depth=6):
            target = entry.get_dest()
            page = None if target is None else target.get_index()
            headings.append(
                Heading(entry.level + 1, entry.get_title() or "", 0 if page is None else page + 1)
            )
            if len(headings) == 5_000:
                break
    except (RuntimeError, ValueError, LookupError):  # damaged: the text can be read nevertheless
        return headings
    return headings
