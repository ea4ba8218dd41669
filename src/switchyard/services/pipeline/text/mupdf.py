"""Read PDFs with PyMuPDF (AGPL), the default, which repairs the most damage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import combining

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import CorruptDocument, EncryptedDocument
from switchyard.services.pipeline.text.bidi import RIGHT_TO_LEFT, Glyph, text_in_order
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.legibility import may_be_language
from switchyard.services.pipeline.text.markdown import Heading, PageLines, clean_line
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
from switchyard.services.pipeline.text.superscripts import is_raised, raised
from switchyard.services.pipeline.text.table_cells import PADDING, Word, with_cells
from switchyard.services.pipeline.text.xfa import text_of_form

_MAX_GAP = 1.0
"""Largest distance of two pieces of a line of text from right to left, in sizes of a letter."""
_MAX_ZERO_WIDTH = 0.01
_BOLD_FLAG = 16
"""MuPDF's flag of a span in bold."""
_LOST_PAGE_WARNING = re.compile(
    r"^.*(?:non-page object|not a stream|cannot load|read error|premature end|syntax error"
    r"|unknown filter|cannot draw text).*",
    re.MULTILINE,
)
"""MuPDF's warnings that a page, or a part of it, is left out."""
_METADATA_KEYS = {"format": "format"} | {
    name: f"info:{name[0].upper()}{name[1:]}"
    for name in (
        *("title", "author", "subject", "keywords", "creator", "producer"),
        *("creationDate", "modDate", "trapped"),
    )
}
"""MuPDF's name of each metadata field, by ours."""
_XFA_PART = re.compile(r"\((\w+)\)\s*(\d{1,10}) \d+ R")
"""A part of an XFA form: its name and the number of its stream."""
_PICTURE_KINDS = frozenset(("fill-image", "fill-imgmask"))
_TEXT_KINDS = frozenset(("fill-text", "stroke-text", "ignore-text"))


class PyMuPDFNotInstalled(PermanentError):
    """A process that is to use PyMuPDF does not have it, as it may be left out for its licence."""


@contextmanager
def opening(data: bytes, limits: Limits) -> Iterator[OpenPdf]:
    """Open a PDF as `pdf.Extractor` says."""
    with opened(data, limits) as (library, document):
        yield _Pdf(library, document, data, limits)


@dataclass(frozen=True, slots=True)
class _Pdf:
    """See `pdf_pages.OpenPdf`."""

    library: Any
    document: Any
    data: bytes
    limits: Limits

    @property
    def page_count(self) -> int:
        return int(self.document.page_count)

    @property
    def repaired(self) -> bool:
        return bool(self.document.is_repaired)

    @property
    def outline(self) -> list[Heading]:
        from switchyard.services.pipeline.text.mupdf_outline import read_outline

        return read_outline(self.library, self.document)

    @property
    def form(self) -> str | None:
        packets = _form_parts(self.library, self.document)
        return None if packets is None else text_of_form(packets)

    @property
    def metadata(self) -> dict[str, str]:
        values = {}
        for name, key in _METADATA_KEYS.items():
            # Raised where the file has no such field.
            with suppress(RuntimeError, ValueError, self.library.mupdf.FzErrorBase):
                values[name] = self.library.mupdf.fz_lookup_metadata2(self.document.this, key)
        return values

    def page(self, number: int) -> PageLines:
        with _reading(self.library, self.data, f"page {number}"):
            self.library.TOOLS.reset_mupdf_warnings()
            page = self.document.load_page(number - 1)
            _check_pixels(self.library, page, number, self.limits)
            lines = _lines(self.library, page)
            if not lines:
                _check_not_lost(self.library.TOOLS.mupdf_warnings(), page)
            rect = page.rect
            width, height = rect.width, rect.height
            has_place = is_sparse(width, height, lines)
            share = picture_share(width, height, _drawn_parts(page)) if has_place else 0.0
            return PageLines(width, height, lines, share)

    def draw(self, number: int, *, dpi: int, side: int, area: int = 0) -> Any:
        import numpy as np

        with opened_page(self.library, self.document, self.data, number, self.limits) as page:
            width, height = page.rect.width * dpi / 72, page.rect.height * dpi / 72
            zoom = dpi / 72 * shrink_factor(width, height, side, area)
            pixels = page.get_pixmap(
                matrix=self.library.Matrix(zoom, zoom), colorspace=self.library.csRGB, alpha=False
            )
            return np.frombuffer(pixels.samples, np.uint8).reshape(pixels.h, pixels.w, 3).copy()


@contextmanager
def opened(data: bytes, limits: Limits) -> Iterator[tuple[Any, Any]]:
    """Open a PDF, and return it with the library. Raises as `Extractor.opening`."""
    library = _library()
    data = with_open_pages(data)
    with _reading(library, data, "it"), _open(library, data) as document:
        _check_document(document, data, limits)
        yield library, document


@contextmanager
def opened_page(
    library: Any, document: Any, data: bytes, number: int, limits: Limits
) -> Iterator[Any]:
    """Open a page, from 1, that may be drawn. Raises CorruptDocument, DocumentTooLarge,
    MemoryError."""
    with _reading(library, data, f"page {number}"):
        page = document.load_page(number - 1)
        _check_pixels(library, page, number, limits)
        yield page


def _open(library: Any, data: bytes) -> Any:
    """Open the document as a PDF. `library.open` is not used: it guesses the type from the content,
    whatever type it is given, and lays out an EPUB, HTML or SVG; and it reads the outline at
    once."""
    bindings = library.mupdf
    document = library.open()  # an empty PDF, which the file replaces
    document.stream = data  # keeps the bytes alive, which are read while the document is open
    stream = bindings.fz_open_memory(bindings.python_buffer_data(data), len(data))
    document.this = bindings.FzDocument(bindings.pdf_open_document_with_stream(stream))
    return document


def _library() -> Any:
    """Import PyMuPDF. Its objects are `Any` here, as it is only half typed. Raises
    PyMuPDFNotInstalled."""
    try:
        import pymupdf
    except ImportError as error:
        raise PyMuPDFNotInstalled(
            "PyMuPDF is not installed here: set JOBS_PDF_EXTRACTOR=pypdfium2 to read PDFs without "
            "it, or run `pip install 'pymupdf<2'`; then redrive the job"
        ) from error

    library: Any = pymupdf
    # Its messages would go to the worker's stderr, without the name of the document.
    library.TOOLS.mupdf_display_errors(False)
    library.TOOLS.mupdf_display_warnings(False)
    library.no_recommend_layout()  # it would print an advertisement
    return library


@contextmanager
def _reading(library: Any, data: bytes, part: str) -> Iterator[None]:
    """Translate the library's errors about a damaged document.

    MuPDF's errors come as RuntimeError or, where PyMuPDF does not translate them, as errors of its
    own, which can't be pickled and so must not leave this module.
    """
    try:
        yield
    except (RuntimeError, ValueError, LookupError, library.mupdf.FzErrorBase) as error:
        reason = _first_line(error)
        if "alloc" in reason or "memory" in reason:  # malloc, calloc, realloc … failed
            raise MemoryError(f"reading the PDF took too much memory ({reason})") from error
        missing_end = "" if has_end(data) else ", and its end is missing"
        raise CorruptDocument(
            f"the PDF is corrupt: {part} can't be read{missing_end} ({reason})"
        ) from error


def _check_not_lost(warnings: str, page: Any) -> None:
    """Raise ValueError where MuPDF gives an empty page instead of one that it can't read. Most of
    its warnings are about something else: a font, a colour profile, a tag."""
    warning = _LOST_PAGE_WARNING.search(warnings)
    if warning is not None and not page.get_images() and not page.get_bboxlog():
        raise ValueError(warning.group())


def _check_document(document: Any, data: bytes, limits: Limits) -> None:
    if document.needs_pass:
        raise EncryptedDocument(NEEDS_PASSWORD)
    if document.is_repaired and not has_end(data):
        # MuPDF finds some of the pages in such a file; half a document must not pass for one.
        raise CorruptDocument(f"the PDF is truncated: it ends after {len(data):,} bytes")
    check_count(document.page_count, limits)


def _check_pixels(library: Any, page: Any, number: int, limits: Limits) -> None:
    rect = page.rect
    page_size = [("", rect.width * 150 / 72, rect.height * 150 / 72)]
    images = [("an image of ", width, height) for width, height in _image_sizes(library, page)]
    check_pixels(number, page_size + images, limits)


def _image_sizes(library: Any, page: Any) -> list[tuple[int, int]]:
    """Return width and height of the images in a page's resources and in those of its forms, in
    pixels.

    PyMuPDF's own list of images, with all details, takes five times as long, which is much where
    there are hundreds of forms; and it stops at a form that is used twice.
    """
    bindings = library.mupdf
    get_entry, get_entry_at = bindings.ll_pdf_dict_gets, bindings.ll_pdf_dict_get_val
    page_object = bindings.pdf_page_from_fz_page(page.this).obj().m_internal
    to_visit = [bindings.ll_pdf_dict_gets_inheritable(page_object, "Resources")]
    sizes: list[tuple[int, int]] = []
    visited: set[int] = set()
    while to_visit:
        objects = get_entry(to_visit.pop(), "XObject")
        for index in range(bindings.ll_pdf_dict_len(objects)):
            resource = get_entry_at(objects, index)
            xref = bindings.ll_pdf_to_num(resource)
            if not xref or xref in visited:  # images and forms are streams, and so have a number
                continue
            visited.add(xref)
            if bindings.ll_pdf_to_name(get_entry(resource, "Subtype")) == "Image":
                width, height = (
                    bindings.ll_pdf_to_int(bindings.ll_pdf_dict_getsa(resource, name, name[0]))
                    for name in ("Width", "Height")
                )
                sizes.append((width, height))
            resources = get_entry(resource, "Resources")
            if resources:
                to_visit.append(resources)
    return sizes


def _form_parts(library: Any, document: Any) -> dict[str, bytes] | None:
    """Return the parts of an XFA form that are read; None for any other PDF."""
    parts_by_name: dict[str, bytes] = {}
    with suppress(RuntimeError, ValueError, library.mupdf.FzErrorBase):  # read up to the damage
        catalog = document.pdf_catalog()
        if document.xref_get_key(catalog, "NeedsRendering") != ("bool", "true"):
            return None
        kind, xfa_entry = document.xref_get_key(catalog, "AcroForm/XFA")
        if kind not in {"array", "xref"}:
            return None
        parts = (
            _XFA_PART.findall(xfa_entry)
            if kind == "array"
            else [("template", xfa_entry.split()[0])]
        )
        for name, xref in parts:
            if name in {"template", "datasets"}:
                parts_by_name[name] = document.xref_stream(int(xref)) or b""
        return parts_by_name
    return parts_by_name or None


def _lines(library: Any, page: Any) -> list[Line]:
    flags = library.TEXT_PRESERVE_WHITESPACE | library.TEXT_MEDIABOX_CLIP
    lines = _lines_with(flags, page)
    if any("\ufffd" in line.text for line in lines):
        # A font without a map to Unicode: its codes may still be those of letters.
        guessing_flags = flags | library.TEXT_CID_FOR_UNKNOWN_UNICODE
        guessed_lines = _lines_with(guessing_flags, page)
        if may_be_language(" ".join(line.text for line in guessed_lines)):
            lines, flags = guessed_lines, guessing_flags
    if any(RIGHT_TO_LEFT.search(line.text) for line in lines if not line.text.isascii()):
        return _lines_with(flags, page, by_glyphs=True)
    return lines


def _lines_with(flags: int, page: Any, *, by_glyphs: bool = False) -> list[Line]:
    """Return the lines of a page; with `by_glyphs`, the letters of lines from right to left are put
    into their order by their places."""
    lines: list[Line] = []
    # Two flags are left out: ligatures are resolved, and images, which may take minutes to decode,
    # are skipped.
    text_page = page.get_textpage(flags=int(flags))
    blocks = (text_page.extractRAWDICT() if by_glyphs else text_page.extractDICT())["blocks"]
    if page.rotation:
        _rotate_lines(blocks, page.rotation_matrix)
    if by_glyphs:
        blocks = [{"lines": _whole_rows(blocks)}]
    has_padding = False
    # The inner loop of reading: values that most lines don't need are not read.
    for block in blocks:
        for line in block.get("lines", ()):
            spans = line["spans"]
            longest = spans[0]
            if len(spans) == 1:
                longest_text = longest["text"]
            else:
                longest = max(spans, key=_span_length)
                longest_text = _join_spans(spans, longest)
            has_padding = has_padding or (
                "   " in longest_text and PADDING.search(longest_text) is not None
            )
            text = clean_line(longest_text)
            if not text:
                continue
            x0, y0, x1, y1 = line["bbox"]
            size = longest["size"]
            if by_glyphs and line["dir"][0] >= 0.5 and RIGHT_TO_LEFT.search(text):
                text = clean_line(text_in_order(_glyphs(spans), size))
            if line["dir"][0] < 0.5:  # upright print: the box is as wide as its letters are high
                lines.append(Line(x0, y0, x1, y1, text, size))
                continue
            # A font may give its letters the height of three lines.
            if y1 - y0 > 1.6 * size:
                middle = (y0 + y1) / 2
                y0, y1 = middle - 0.6 * size, middle + 0.6 * size
            bold = longest["flags"] & _BOLD_FLAG != 0
            if bold and len(spans) > 1:
                bold = all(span["flags"] & _BOLD_FLAG for span in spans if span["text"].strip())
            lines.append(Line(x0, y0, x1, y1, text, size, bold))
    if by_glyphs:
        return lines
    return with_cells(lines, lambda: _words(text_page, page), are_padded=has_padding)


def _words(text_page: Any, page: Any) -> Iterator[Word]:
    for x0, y0, x1, y1, text, *_ in text_page.extractWORDS():
        if page.rotation:
            x0, y0, x1, y1 = _rotate_box((x0, y0, x1, y1), page.rotation_matrix)
        yield Word(x0, y0, x1, y1, text)


def _rotate_lines(blocks: list[Any], matrix: Any) -> None:
    """Rotate the lines' boxes from their places in the file to where the rotated page shows
    them."""
    for block in blocks:
        for line in block.get("lines", ()):
            line["bbox"] = _rotate_box(line["bbox"], matrix)
            x, y = line["dir"]
            line["dir"] = (matrix.a * x + matrix.c * y, matrix.b * x + matrix.d * y)
            for span in line["spans"]:
                span["origin"] = _rotate_box((*span["origin"], *span["origin"]), matrix)[:2]
                for char in span.get("chars", ()):
                    char["bbox"] = _rotate_box(char["bbox"], matrix)


def _rotate_box(box: Box, matrix: Any) -> Box:
    x0, y0, x1, y1 = box
    xs = [matrix.a * x + matrix.c * y + matrix.e for x, y in ((x0, y0), (x1, y1))]
    ys = [matrix.b * x + matrix.d * y + matrix.f for x, y in ((x0, y0), (x1, y1))]
    return min(xs), min(ys), max(xs), max(ys)


def _whole_rows(blocks: list[Any]) -> list[Any]:
    """Return the lines of all blocks, each span with its text. Lines of a row with letters from
    right to left are joined, as the library gives a piece for each direction."""
    rows: list[Any] = []
    for block in blocks:
        for line in block.get("lines", ()):
            for span in line["spans"]:
                span["text"] = "".join(char["c"] for char in span["chars"])
            line["rtl"] = any(RIGHT_TO_LEFT.search(span["text"]) for span in line["spans"])
            last_row = rows[-1] if rows else None
            if (
                last_row is not None
                and (line["rtl"] or last_row["rtl"])
                and _are_beside(last_row, line)
            ):
                last_row["spans"] += line["spans"]
                last_row["rtl"] = True
                (a0, b0, a1, b1), (x0, y0, x1, y1) = last_row["bbox"], line["bbox"]
                last_row["bbox"] = (min(a0, x0), min(b0, y0), max(a1, x1), max(b1, y1))
            else:
                rows.append(line)
    return rows


def _are_beside(line: Any, other: Any) -> bool:
    (a0, b0, a1, b1), (x0, y0, x1, y1) = line["bbox"], other["bbox"]
    size = max(line["spans"][0]["size"], other["spans"][0]["size"])
    shared = min(b1, y1) - max(b0, y0)
    return bool(
        shared > 0.6 * min(b1 - b0, y1 - y0)
        and max(x0 - a1, a0 - x1) < _MAX_GAP * size
        and line["dir"][0] >= 0.5
        and other["dir"][0] >= 0.5
    )


def _glyphs(spans: list[Any]) -> list[Glyph]:
    """Return the glyphs of a line. The second and later letters of a ligature have no width, and
    stand behind its first one, or before it where the library has reversed their order."""
    glyphs: list[Glyph] = []
    zero_width_before: list[Any] = []
    for span in spans:
        for char in span["chars"]:
            x0, _, x1, _ = char["bbox"]
            has_no_width = x1 - x0 <= _MAX_ZERO_WIDTH
            if has_no_width and glyphs and abs(glyphs[-1].x1 - x0) < 0.1:
                glyphs[-1] = replace(glyphs[-1], text=glyphs[-1].text + char["c"])
            elif not has_no_width or combining(char["c"]):
                ligature_rest = [
                    each["c"]
                    for each in reversed(zero_width_before)
                    if abs(each["bbox"][0] - x1) < 0.1
                ]
                glyphs.append(Glyph(char["c"] + "".join(ligature_rest), x0, x1))
                zero_width_before.clear()
            else:
                zero_width_before.append(char)
    return glyphs


def _span_length(span: Any) -> int:
    return len(span["text"])


def _join_spans(spans: list[Any], longest: Any) -> str:
    """Return the text of a line, with its raised numbers as superscripts."""
    size, baseline = longest["size"], longest["origin"][1]
    texts = []
    for span in spans:
        text: str = span["text"]
        # A line has a span for each word where its words are placed one by one.
        if span["size"] < size and is_raised(span["size"], span["origin"][1], size, baseline):
            text = raised(text)
        texts.append(text)
    return "".join(texts)


def _drawn_parts(page: Any) -> Iterator[Drawn]:
    """Yield pictures, without decoding any, and texts in the order in which they are drawn."""
    for kind, box in page.get_bboxlog():
        if kind in _PICTURE_KINDS or kind in _TEXT_KINDS:
            is_seen = kind != "ignore-text"
            yield Drawn(_rotate_box(box, page.rotation_matrix), kind in _PICTURE_KINDS, is_seen)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
