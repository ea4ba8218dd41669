"""Pages and texts of PDFs, as every extractor returns them, and the limits for all extractors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

from switchyard.services.common.files.errors import CorruptDocument, DocumentTooLarge
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import Heading, PageLines
from switchyard.services.pipeline.text.plain_text import has_words

Box = tuple[float, float, float, float]
"""A box on a page: left, upper, right, lower; in the file's own coordinates, lower before upper."""

NEEDS_PASSWORD = (
    "the PDF is encrypted, and opens with a password only: save it without, and send it again"
)

_END_KEYWORD = b"startxref"
"""Keyword behind the last object of a complete file. Behind it, `%%EOF` may be missing, and a
server's page of HTML may follow."""
_ENCRYPT = re.compile(rb"/Encrypt(?=\s*(?:<<|(\d{1,10})\s+(\d{1,5})\s+R\b))")
_FILTER_VERSION = re.compile(rb"/V\s*[45]\b")
"""An encryption that names separate filters for streams, strings and attachments."""
_USED_FILTER = re.compile(rb"/St[mr]F\s*/\s*(?!Identity\b)\w")
_MAX_ENCRYPTION_BYTES = 16_384
"""Largest dictionary of an encryption, in bytes; usual are a few hundred."""
_OBJECT = re.compile(rb"\b\d{1,10} \d{1,5} obj\b")


MIN_SCAN_SHARE = 0.5
"""A page with little text is a scan if pictures cover more than this share of it: more than a logo
on an empty page, or a photograph in its margins, would cover."""
_MAX_SPARSE_LETTERS = 600
_MAX_SPARSE_AREA = 0.12
"""Text with at most _MAX_SPARSE_LETTERS letters, or on at most this part of the page, does not say
what a picture beneath it shows: stamps, page numbers, notices of downloads, entries in scanned
forms."""
_MIN_LAYER_AREA = 0.002
"""Unseen text that covers more than this share of the page is the layer of an earlier OCR: a short
line, or more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one document."""

    pages: int = 2_000
    page_pixels: int = 200_000_000
    """Pixels of a page drawn at 150 dpi, and of any image on it."""
    characters: int = 20_000_000
    page_seconds: int = 10
    """Most seconds of processor time to read or draw a page: a usual page takes some 10 ms."""
    lost_pages: int = 4
    """Pages of a document that may exceed `page_seconds`, or crash the library; the time for them
    counts in the time of `extract_text`."""

    def check_characters(self, count: int, number: int) -> None:
        """Check the number of characters up to page `number`. Raises DocumentTooLarge."""
        if count > self.characters:
            raise DocumentTooLarge(
                f"the PDF has more than {self.characters:,} characters of text by page {number}"
            )


@dataclass(frozen=True, slots=True)
class PdfPage:
    number: int
    """From 1."""
    text: str
    """Markdown: paragraphs, one to a line, headings and tables, blank lines between them; empty
    for an image or a blank page."""
    error: str | None = None
    """Why the page can't be read, where other pages of the document can."""
    is_scan: bool = False
    """Whether the page has few or no words, and pictures cover more than half of it."""
    is_unreadable: bool = False
    """Whether most characters of the page mean nothing, as its fonts lack a map to Unicode."""


@dataclass(frozen=True, slots=True)
class PdfText:
    """The text of a PDF, and what else its file says."""

    pages: tuple[PdfPage, ...]
    title: str | None
    metadata: dict[str, str]
    """Author, subject, keywords, creation date and the like, as far as the file has them."""
    repaired: bool
    """Whether the file was damaged; all pages except those with an `error` could still be read."""
    outline: tuple[Heading, ...] = ()
    """The file's own table of contents."""

    @property
    def needs_ocr(self) -> bool:
        """Whether no page has text, apart from a few letters on scanned pages: the document is
        scanned, or its letters are drawn as shapes."""
        return not any(page.text and not page.is_scan for page in self.pages)


@dataclass(frozen=True, slots=True)
class RawPdf:
    """What an extractor finds in a PDF."""

    pages: Sequence[PageLines | None]
    """None in place of a page that can't be read."""
    errors: Mapping[int, str]
    """Why pages can't be read, by their number."""
    outline: Sequence[Heading]
    metadata: Mapping[str, str]
    """The file's own metadata, with `title`."""
    repaired: bool
    form: str | None = None
    """See `OpenPdf.form`."""


class OpenPdf(Protocol):
    """A PDF that is being read."""

    @property
    def page_count(self) -> int: ...

    @property
    def repaired(self) -> bool:
        """Whether damage had to be repaired in the part that was read so far."""

    @property
    def outline(self) -> list[Heading]: ...

    @property
    def form(self) -> str | None:
        """The text of an XFA form, which its pages lack; None for any other PDF. Raises
        UnsupportedDocument."""

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own metadata, with `title`."""

    def page(self, number: int) -> PageLines:
        """Return the lines of a page, from 1, in any order, without characters outside of the part
        of the page that is shown. Raises CorruptDocument, DocumentTooLarge, MemoryError."""

    def draw(self, number: int, *, dpi: int, side: int, area: int = 0) -> Any:
        """Draw a page, from 1, as rows of pixels (red, green, blue), at a resolution of `dpi`. It
        is lower where the picture would be longer or wider than `side` pixels and have more than
        `area` pixels. Raises as `page`."""


def check_count(count: int, limits: Limits) -> None:
    """Check the number of pages. Raises CorruptDocument, DocumentTooLarge."""
    if count == 0:
        raise CorruptDocument("the PDF is corrupt: it has no pages")
    if count > limits.pages:
        raise DocumentTooLarge(f"the PDF has {count:,} pages, {limits.pages:,} are allowed")


def covered_share(width: float, height: float, boxes: Iterable[Box]) -> float:
    """Return the part of a page that boxes cover, 0 to 1. Their areas are added up without regard
    to overlaps, as scanners put strips beside one another."""
    area = sum(
        max(0.0, min(x1, width) - max(x0, 0.0)) * max(0.0, min(y1, height) - max(y0, 0.0))
        for x0, y0, x1, y1 in boxes
    )
    return min(1.0, area / (width * height)) if width > 0 and height > 0 else 0.0


def is_sparse(width: float, height: float, lines: Sequence[Line]) -> bool:
    """Return whether a page has so little text that it may be a scan nevertheless."""
    letters = sum(len(line.text) for line in lines)
    if letters > _MAX_SPARSE_LETTERS:
        return False
    area = sum((line.x1 - line.x0) * (line.y1 - line.y0) for line in lines)
    return area < _MAX_SPARSE_AREA * width * height or not any(
        has_words(line.text) for line in lines
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture or a text that is drawn on a page."""

    box: Box
    is_picture: bool
    is_seen: bool = True
    """False for text that is drawn without ink, as the text layer of an OCR is."""


def picture_share(width: float, height: float, drawn_parts: Iterable[Drawn]) -> float:
    """Return the part of a page that pictures cover, 0 to 1, from what is drawn on it, in that
    order. It is 0 where unseen text says what the pictures show: drawn without ink, or beneath
    them."""
    pictures: list[Box] = []
    texts: list[Box] = []
    hidden_share = 0.0
    for part in drawn_parts:
        if not part.is_picture:
            if part.is_seen:
                texts.append(part.box)
            else:
                hidden_share += covered_share(width, height, [part.box])
            continue
        pictures.append(part.box)
        if covered_share(width, height, [part.box]) > MIN_SCAN_SHARE:
            hidden_share += covered_share(
                width, height, [box for box in texts if _is_within(box, part.box)]
            )
            texts = []
    return 0.0 if hidden_share > _MIN_LAYER_AREA else covered_share(width, height, pictures)


def _is_within(box: Box, other: Box) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return other[0] <= x <= other[2] and other[1] <= y <= other[3]


def check_pixels(
    number: int, drawn_sizes: Iterable[tuple[str, float, float]], limits: Limits
) -> None:
    """Check the sizes of things that are drawn on a page: a name, width and height in pixels each.
    Raises DocumentTooLarge."""
    for name, width, height in drawn_sizes:
        if width * height > limits.page_pixels:
            raise DocumentTooLarge(
                f"page {number} of the PDF has {name}{width:.0f} × {height:.0f} pixels, "
                f"{limits.page_pixels:,} are allowed"
            )


def shrink_factor(width: float, height: float, side: int, area: int = 0) -> float:
    """Return the factor, at most 1, by which to scale a picture so that neither side is longer than
    `side`, or it has no more than `area` pixels: the larger factor of the two."""
    scale = side / max(width, height, 1.0)
    return min(1.0, max(scale, sqrt(area / max(width * height, 1.0))))


def has_end(data: bytes) -> bool:
    """Return whether a PDF was not cut off."""
    keyword_start = data.rfind(_END_KEYWORD)
    return keyword_start >= 0 and _OBJECT.search(data, keyword_start) is None


def with_open_pages(data: bytes) -> bytes:
    """Return the file without its encryption where only the attachments are encrypted: its pages
    open without the password, but the libraries ask for it nevertheless. Any other file is returned
    unchanged."""
    matches = list(_ENCRYPT.finditer(data))
    if not matches:
        return data
    last_match = matches[-1]
    start = last_match.end()
    if last_match[1] is not None:
        object_start = re.compile(rb"(?:^|[\s>])%b\s+%b\s+obj\b" % (last_match[1], last_match[2]))
        objects = list(object_start.finditer(data))
        if not objects:
            return data
        start = objects[-1].end()
    dictionary = data[start : start + _MAX_ENCRYPTION_BYTES].partition(b"endobj")[0]
    if _FILTER_VERSION.search(dictionary) is None or _USED_FILTER.search(dictionary) is not None:
        return data
    decrypted = bytearray(data)
    for each in matches:
        decrypted[each.start() : each.end()] = b"/Ignored"
    return bytes(decrypted)
