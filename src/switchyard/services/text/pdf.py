"""The text of a PDF, page by page, with PyMuPDF.

Runs in a process of its own: a document that makes the library crash, hang or eat memory takes
only that process with it. Limits here stop what can be seen before it hurts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from switchyard.services.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    EncryptedDocument,
)
from switchyard.services.text.plain import clean, count_words, unwrap

_END = b"startxref"
"""Stands behind the last object of a whole file; behind it, `%%EOF` may be missing and a server's
page of HTML may follow."""
_OBJECT = re.compile(rb"\b\d{1,10} \d{1,5} obj\b")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a document may ask of us."""

    pages: int = 2_000
    page_pixels: int = 200_000_000
    """Pixels of a page drawn at 150 dpi, and of any image on it."""
    characters: int = 20_000_000


@dataclass(frozen=True, slots=True)
class PdfPage:
    number: int
    """From 1."""
    text: str
    """Paragraphs, one to a line, blank lines between them; empty for an image or a blank page."""
    is_broken: bool = False
    """It can't be read, and others of its document can."""


@dataclass(frozen=True, slots=True)
class PdfText:
    """What a PDF says."""

    pages: tuple[PdfPage, ...]
    title: str | None
    metadata: dict[str, str]
    """Author, subject, keywords, creation date and the like, as far as the file has them."""
    repaired: bool
    """The file was damaged: all of its pages could still be read, but for those that are broken."""

    @property
    def needs_ocr(self) -> bool:
        """No page has any text: scanned images, or letters drawn as shapes."""
        return not any(page.text for page in self.pages)


def read_pdf(data: bytes, limits: Limits | None = None) -> PdfText:
    """Read a whole PDF.

    Raises CorruptDocument (also for a file that is empty or cut off, or of which no page can be
    read), EncryptedDocument, DocumentTooLarge, and MemoryError.
    """
    limits = limits or Limits()
    if not data:
        raise CorruptDocument("the PDF is empty")
    library = _library()
    with _reading(library, data, "it"), library.open(stream=data, filetype="pdf") as document:
        _check_document(document, data, limits)
        pages = tuple(_pages(library, document, data, limits))
        broken = any(page.is_broken for page in pages)
        return PdfText(
            pages=pages,
            title=_title(library, document, can_look=not pages[0].is_broken),
            metadata=_metadata(document),
            repaired=bool(document.is_repaired) or broken,
        )


def _library() -> Any:
    """PyMuPDF, which is half typed: its objects are `Any` here."""
    import pymupdf

    library: Any = pymupdf
    # Its complaints would go to the worker's stderr, without saying of which document.
    library.TOOLS.mupdf_display_errors(False)
    library.TOOLS.mupdf_display_warnings(False)
    return library


@contextmanager
def _reading(library: Any, data: bytes, what: str) -> Iterator[None]:
    """Turn what the library raises over a damaged document into an error that says so.

    MuPDF's own errors come in two forms, as RuntimeError and, where PyMuPDF forgot to translate
    them, as they are; these can't be pickled either, so they must not leave this module.
    """
    try:
        yield
    except (RuntimeError, ValueError, LookupError, library.mupdf.FzErrorBase) as error:
        said = _first_line(error)
        if "alloc" in said or "memory" in said:  # malloc, calloc, realloc … failed
            raise MemoryError(f"reading the PDF took too much memory ({said})") from error
        cut = "" if _has_end(data) else ", and its end is missing"
        raise CorruptDocument(f"the PDF is corrupt: {what} can't be read{cut} ({said})") from error


def _check_document(document: Any, data: bytes, limits: Limits) -> None:
    if document.needs_pass:
        raise EncryptedDocument("the PDF is encrypted: a password is needed to read it")
    if document.is_repaired and not _has_end(data):
        # MuPDF finds some of the pages in such a file; half a document must not pass for one.
        raise CorruptDocument(f"the PDF is truncated: it ends after {len(data):,} bytes")
    if document.page_count == 0:
        raise CorruptDocument("the PDF is corrupt: it has no pages")
    if document.page_count > limits.pages:
        raise DocumentTooLarge(
            f"the PDF has {document.page_count:,} pages, {limits.pages:,} are allowed"
        )


def _pages(library: Any, document: Any, data: bytes, limits: Limits) -> list[PdfPage]:
    found: list[PdfPage] = []
    characters = 0
    first: CorruptDocument | None = None
    for number in range(1, document.page_count + 1):
        try:
            with _reading(library, data, f"page {number}"):
                library.TOOLS.reset_mupdf_warnings()
                page = document.load_page(number - 1)
                _check_pixels(page, number, limits)
                text = _page_text(library, page)
                said = library.TOOLS.mupdf_warnings()
                if said and not text and not page.get_images():
                    # It goes on with an empty page where there was one that it can't read.
                    raise ValueError(said)
        except CorruptDocument as error:
            first = first or error
            found.append(PdfPage(number, "", is_broken=True))
            continue
        characters += len(text)
        if characters > limits.characters:
            raise DocumentTooLarge(
                f"the PDF has more than {limits.characters:,} characters of text by page {number}"
            )
        found.append(PdfPage(number, text if count_words(text) else ""))
    if first is not None and all(page.is_broken for page in found):
        raise first
    return found


def _check_pixels(page: Any, number: int, limits: Limits) -> None:
    drawn = [("", page.rect.width * 150 / 72, page.rect.height * 150 / 72)]
    images = [("an image of ", image[2], image[3]) for image in page.get_images()]
    for what, width, height in drawn + images:
        if width * height > limits.page_pixels:
            raise DocumentTooLarge(
                f"page {number} of the PDF has {what}{width:.0f} × {height:.0f} pixels, "
                f"{limits.page_pixels:,} are allowed"
            )


def _page_text(library: Any, page: Any) -> str:
    blocks = page.get_text("blocks", flags=_flags(library))
    blocks = [unwrap(clean(block[4])) for block in blocks]
    blocks = [block for block in blocks if block]
    for end in (0, -1):
        if len(blocks) > 1 and blocks[end].isdecimal() and len(blocks[end]) < 5:
            del blocks[end]  # the page's number
    return "\n\n".join(blocks)


def _flags(library: Any) -> int:
    """How text is taken out: ligatures in letters, and without images, which may take minutes to
    decode. Both are flags that are not set."""
    flags = library.TEXT_PRESERVE_WHITESPACE | library.TEXT_MEDIABOX_CLIP
    return int(flags | library.TEXT_DEHYPHENATE)


def _title(library: Any, document: Any, *, can_look: bool) -> str | None:
    """The title the file gives, else the largest print on its first page."""
    named = unwrap(clean((document.metadata or {}).get("title") or ""))
    junk = ("untitled", "microsoft word", "imagemagick", "powerpoint", "document")
    if len(named) > 3 and not named.lower().startswith(junk) and count_words(named):
        return named[:300]
    if not can_look:
        return None
    spans = [
        (round(span["size"], 1), unwrap(clean(span["text"])))
        for block in document.load_page(0).get_text("dict", flags=_flags(library))["blocks"]
        for line in block.get("lines", ())
        for span in line["spans"]
    ]
    largest = max((size for size, text in spans if text), default=0)
    headline = unwrap(" ".join(text for size, text in spans if size == largest and text))
    others = any(text and size < largest for size, text in spans)
    return headline if others and count_words(headline) and len(headline) <= 200 else None


def _metadata(document: Any) -> dict[str, str]:
    found = {}
    for name, value in (document.metadata or {}).items():
        text = unwrap(clean(value)) if isinstance(value, str) else ""
        if text and name not in {"title", "encryption"}:
            found[name] = text[:1000]
    return found


def _has_end(data: bytes) -> bool:
    at = data.rfind(_END)
    return at >= 0 and _OBJECT.search(data, at) is None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def draw_page(data: bytes, number: int, *, dpi: int, side: int, limits: Limits) -> Any:
    """A page, from 1, as rows of pixels (red, green, blue): at that resolution, or at a lower one
    where it would be longer or wider than `side` pixels.

    Raises CorruptDocument, EncryptedDocument, DocumentTooLarge, MemoryError.
    """
    import numpy as np

    library = _library()
    with (
        _reading(library, data, f"page {number}"),
        library.open(stream=data, filetype="pdf") as document,
    ):
        _check_document(document, data, limits)
        page = document.load_page(number - 1)
        _check_pixels(page, number, limits)
        zoom = min(dpi / 72, side / max(page.rect.width, page.rect.height, 1))
        drawn = page.get_pixmap(
            matrix=library.Matrix(zoom, zoom), colorspace=library.csRGB, alpha=False
        )
        return np.frombuffer(drawn.samples, np.uint8).reshape(drawn.h, drawn.w, 3).copy()
