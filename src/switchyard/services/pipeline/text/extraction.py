"""Extract the text of an original, in the same form for PDF, images, plain text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from switchyard.services.common.files.errors import CorruptDocument, DocumentTooLarge
from switchyard.services.common.files.media_types import IMAGES, PDF, decode_text
from switchyard.services.pipeline.text.images import count_pages
from switchyard.services.pipeline.text.legibility import is_gibberish
from switchyard.services.pipeline.text.partial_results import Drafts
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from switchyard.services.pipeline.text.pdf_pages import Limits, PdfPage
from switchyard.services.pipeline.text.plain_text import (
    clean,
    count_words,
    has_words,
    paragraphs,
    shorten,
)

_UNKNOWN_ERROR = "it can't be read"
"""Error of a page in an output of an earlier version, which did not store why a page can't be
read."""


def extract(
    data: bytes,
    media_type: str,
    *,
    title: str | None,
    filename: str | None,
    extractor: ExtractorName = "pymupdf",
    drafts: Drafts | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Return the output of the stage `extract_text`, as JSON.

    The title is `title`, which the sender gave, else the document's own, else made of `filename`.
    `drafts` and `on_page` are as in `read_pdf`. Raises CorruptDocument, EncryptedDocument,
    DocumentTooLarge, UnsupportedDocument, MemoryError.
    """
    outline: list[dict[str, Any]] = []
    if media_type == PDF:
        pdf = read_pdf(data, extractor=extractor, drafts=drafts, on_page=on_page)
        pages, own_title, metadata = pdf.pages, pdf.title, pdf.metadata
        needs_ocr, repaired = pdf.needs_ocr, pdf.repaired
        outline = [asdict(entry) for entry in pdf.outline]
    elif media_type in IMAGES:
        limits = Limits()
        count = count_pages(data, max_pixels=limits.page_pixels, max_pages=limits.pages)
        pages = tuple(PdfPage(number, "", is_scan=True) for number in range(1, count + 1))
        own_title, metadata, needs_ocr, repaired = None, {}, True, False
    else:
        pages = (PdfPage(1, _read_plain_text(data)),)
        own_title, metadata, needs_ocr, repaired = None, {}, False, False
    texts = [page.text for page in pages]
    return {
        "title": _title(title, own_title, texts, filename),
        "media_type": media_type,
        "metadata": metadata,
        "page_count": len(pages),
        **_count_pages(pages),
        "needs_ocr": needs_ocr,
        "repaired": repaired,
        "outline": outline,
        "pages": [{"page": page.number, "text": page.text} for page in pages],
    }


def with_ocr(
    extracted: Mapping[str, Any],
    ocr_texts: Mapping[int, str | None],
    *,
    errors: Mapping[int, str],
    title: str | None,
    filename: str | None,
) -> dict[str, Any]:
    """Return `extracted`, the output of `extract_text`, with the texts of OCR by page.

    A page whose text in `ocr_texts` is None can't be read, for the reason in `errors`, and keeps
    its earlier text. Titles are as in `extract`; one that was only the file's name is replaced by
    a headline.
    """
    pages_by_ocr = set(extracted.get("ocr_pages", ()))
    unreadable_before = set(extracted.get("unreadable_pages", ()))
    broken_before = set(extracted.get("broken_pages", ()))
    scanned_before = set(extracted.get("scanned_pages", ()))
    earlier_errors = extracted.get("page_errors", {})
    pages = []
    for page in extracted["pages"]:
        number = page["page"]
        ocr_text = ocr_texts.get(number)
        is_read_anew = ocr_text is not None and not is_gibberish(ocr_text)
        is_unreadable = number in unreadable_before and not (
            is_read_anew and has_words(ocr_text or "")
        )
        page_text = page["text"] if ocr_text is None or is_unreadable else ocr_text
        error = None
        if number not in ocr_texts and number in broken_before:
            error = earlier_errors.get(str(number), _UNKNOWN_ERROR)
        elif number in ocr_texts and ocr_text is None:
            has_full_text = (
                page_text and number not in scanned_before and number not in broken_before
            )
            error = None if has_full_text else errors.get(number, _UNKNOWN_ERROR)
        is_scan = number in scanned_before and number not in ocr_texts
        pages.append(PdfPage(number, page_text, error, is_scan, is_unreadable))
    texts = [page.text for page in pages]
    if len(texts) and extracted["title"] == _title(None, None, [], filename):
        new_title = _title(title, None, texts, filename)
    else:
        new_title = extracted["title"]
    return dict(extracted) | {
        "title": new_title,
        **_count_pages(pages),
        "needs_ocr": False,
        "ocr_pages": sorted(pages_by_ocr | {number for number, text in ocr_texts.items() if text}),
        "pages": [{"page": page.number, "text": page.text} for page in pages],
    }


def _count_pages(pages: Sequence[PdfPage]) -> dict[str, Any]:
    return {
        "word_count": sum(count_words(page.text) for page in pages),
        "character_count": sum(len(page.text) for page in pages),
        "pages_without_text": [page.number for page in pages if not page.text],
        "broken_pages": [page.number for page in pages if page.error is not None],
        "page_errors": {str(page.number): page.error for page in pages if page.error is not None},
        "scanned_pages": [page.number for page in pages if page.is_scan],
        "unreadable_pages": [page.number for page in pages if page.is_unreadable],
    }


def _read_plain_text(data: bytes) -> str:
    text = clean(decode_text(data))
    if not has_words(text):
        raise CorruptDocument("the text has no words")
    limit = Limits().characters
    if len(text) > limit:
        raise DocumentTooLarge(f"the text has {len(text):,} characters, {limit:,} are allowed")
    return text


def _title(
    sent_title: str | None, own_title: str | None, texts: Sequence[str], filename: str | None
) -> str:
    candidates = (
        clean(sent_title or ""),
        own_title or "",
        _first_line(texts),
        clean((filename or "").rpartition("/")[2]),
    )
    return next((shorten(text, 300) for text in candidates if text), "Untitled")


def _first_line(texts: Sequence[str]) -> str:
    """Return the first paragraph, if it looks like a headline."""
    first = next((block for text in texts for block in paragraphs(text)), "").lstrip("# ")
    return first if count_words(first) <= 20 and not first.endswith(".") else ""
