"""A stored original as text: one form for PDF, plain text and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchyard.services.files.errors import CorruptDocument, DocumentTooLarge
from switchyard.services.files.media import PDF, decode_text
from switchyard.services.text.pdf import Limits, PdfPage, read_pdf
from switchyard.services.text.plain import clean, count_words, paragraphs, shorten


def extract(
    data: bytes, media_type: str, *, title: str | None, filename: str | None
) -> dict[str, Any]:
    """The output of the stage `extract_text`, as JSON.

    `title` is what the sender named; else it comes from the document, else from `filename`.
    Raises CorruptDocument, EncryptedDocument, DocumentTooLarge, UnsupportedDocument, MemoryError.
    """
    if media_type == PDF:
        read = read_pdf(data)
        pages, found, metadata = read.pages, read.title, read.metadata
        needs_ocr, repaired = read.needs_ocr, read.repaired
    else:
        pages = (PdfPage(1, _plain(data)),)
        found, metadata, needs_ocr, repaired = None, {}, False, False
    texts = [page.text for page in pages]
    return {
        "title": _title(title, found, texts, filename),
        "media_type": media_type,
        "metadata": metadata,
        "page_count": len(pages),
        "word_count": sum(count_words(text) for text in texts),
        "character_count": sum(len(text) for text in texts),
        "pages_without_text": [page.number for page in pages if not page.text],
        "broken_pages": [page.number for page in pages if page.is_broken],
        "needs_ocr": needs_ocr,
        "repaired": repaired,
        "pages": [{"page": page.number, "text": page.text} for page in pages],
    }


def _plain(data: bytes) -> str:
    text = clean(decode_text(data))
    if not count_words(text):
        raise CorruptDocument("the text has no words")
    limit = Limits().characters
    if len(text) > limit:
        raise DocumentTooLarge(f"the text has {len(text):,} characters, {limit:,} are allowed")
    return text


def _title(given: str | None, found: str | None, texts: Sequence[str], filename: str | None) -> str:
    candidates = (
        clean(given or ""),
        found or "",
        _first_line(texts),
        clean((filename or "").rpartition("/")[2]),
    )
    return next((shorten(text, 300) for text in candidates if text), "Untitled")


def _first_line(texts: Sequence[str]) -> str:
    """The first paragraph, where it looks like a headline."""
    first = next((block for text in texts for block in paragraphs(text)), "").lstrip("# ")
    return first if count_words(first) <= 20 and not first.endswith(".") else ""
