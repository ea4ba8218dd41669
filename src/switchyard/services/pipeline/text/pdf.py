"""Read the text of a PDF, page by page, as Markdown.

Runs in a process of its own: a document that makes a library crash, hang or use up memory ends only
that process. `pdf_pages.Limits` refuses documents whose cost can be seen beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from switchyard.services.common.files.errors import CorruptDocument, PageTooCostly
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.legibility import is_unreadable
from switchyard.services.pipeline.text.markdown import Heading, PageLines, compose
from switchyard.services.pipeline.text.overprint import without_copies
from switchyard.services.pipeline.text.page_process import PageProcess
from switchyard.services.pipeline.text.partial_results import PAGES_PER_DRAFT, Draft, Drafts
from switchyard.services.pipeline.text.pdf_pages import (
    MIN_SCAN_SHARE,
    Limits,
    OpenPdf,
    PdfPage,
    PdfText,
    RawPdf,
)
from switchyard.services.pipeline.text.plain_text import clean, has_words, unwrap

ExtractorName = Literal["pymupdf", "pypdfium2"]


class Extractor(Protocol):
    """A library that reads PDFs: a module with one function."""

    def opening(self, data: bytes, limits: Limits) -> AbstractContextManager[OpenPdf]:
        """Open a PDF, to be read page by page.

        Raises CorruptDocument (also for a file that is empty or cut off), EncryptedDocument,
        DocumentTooLarge, and MemoryError.
        """


def extractor_named(name: ExtractorName) -> Extractor:
    """Return the extractor of that name; its library is loaded at its first use."""
    from switchyard.services.pipeline.text import mupdf, pdfium

    return cast("Extractor", mupdf if name == "pymupdf" else pdfium)


@dataclass(slots=True)
class _PageByPage:
    """A PDF whose pages are read and drawn in a process of their own, each within its limit."""

    pdf: OpenPdf
    process: PageProcess
    is_damaged: bool = False

    @property
    def page_count(self) -> int:
        return self.pdf.page_count

    @property
    def repaired(self) -> bool:
        return self.is_damaged or self.pdf.repaired

    @property
    def outline(self) -> list[Heading]:
        return self.pdf.outline

    @property
    def form(self) -> str | None:
        return self.pdf.form

    @property
    def metadata(self) -> dict[str, str]:
        return self.pdf.metadata

    def page(self, number: int) -> PageLines:
        page, is_damaged = self.process.run(number, _page_of, {})
        self.is_damaged = self.is_damaged or is_damaged
        return cast("PageLines", page)

    def draw(self, number: int, *, dpi: int, side: int, area: int = 0) -> Any:
        picture, _ = self.process.run(number, _picture_of, {"dpi": dpi, "side": side, "area": area})
        return picture


def _page_of(pdf: OpenPdf, number: int) -> PageLines:
    return pdf.page(number)


def _picture_of(pdf: OpenPdf, number: int, *, dpi: int, side: int, area: int) -> Any:
    return pdf.draw(number, dpi=dpi, side=side, area=area)


@contextmanager
def opening(data: bytes, limits: Limits, extractor: ExtractorName) -> Iterator[OpenPdf]:
    """Open a PDF to be read and drawn page by page. A page that costs too much, or crashes the
    library, raises CorruptDocument, and the others can still be read (see `PageProcess`).

    Raises as `Extractor.opening`.
    """
    with extractor_named(extractor).opening(data, limits) as pdf:

        def work(number: int, do: Callable[..., Any], options: dict[str, Any]) -> tuple[Any, bool]:
            return do(pdf, number, **options), pdf.repaired

        with PageProcess(work, limits) as process:
            yield _PageByPage(pdf, process)


def read_pdf(
    data: bytes,
    limits: Limits | None = None,
    extractor: ExtractorName = "pymupdf",
    *,
    drafts: Drafts | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> PdfText:
    """Read a whole PDF, except the ranges of pages that `drafts` already has.

    `on_page` is called for each page that was read, with its number and the number of pages. Raises
    CorruptDocument (also where no page can be read), EncryptedDocument, DocumentTooLarge,
    MemoryError, and what keeping drafts raises.
    """
    limits = limits or Limits()
    raw = read_pages(data, limits, extractor, drafts=drafts, on_page=on_page)
    readable_pages = [page for page in raw.pages if page is not None]
    texts = iter(compose(readable_pages, raw.outline))
    pages = []
    for number, page in enumerate(raw.pages, 1):
        text = "" if page is None else next(texts)
        if raw.form is not None:  # the pages of a form only say that they can't be shown
            text = raw.form if number == 1 else ""
        has_unreadable_text = page is not None and is_unreadable(page.lines)
        text = text if has_unreadable_text or has_words(text) else ""
        is_scan = (
            page is not None
            and page.picture_share > MIN_SCAN_SHARE
            and not has_unreadable_text
            and not raw.form
        )
        pages.append(PdfPage(number, text, raw.errors.get(number), is_scan, has_unreadable_text))
    return PdfText(
        pages=tuple(pages),
        title=_title(raw.metadata, raw.pages[0]),
        metadata=_metadata(raw.metadata),
        repaired=raw.repaired or bool(raw.errors),
        outline=_clean_outline(raw.outline),
    )


def read_pages(
    data: bytes,
    limits: Limits,
    extractor: ExtractorName,
    *,
    drafts: Drafts | None = None,
    on_page: Callable[[int, int], None] | None = None,
) -> RawPdf:
    """Return the lines of a PDF's pages, in any order. Raises as `read_pdf`."""
    if not data:
        raise CorruptDocument("the PDF is empty")
    with opening(data, limits, extractor) as pdf:
        count, characters = pdf.page_count, 0
        pages: list[PageLines | str] = []
        repaired = False
        used_drafts = drafts if drafts is not None and count >= drafts.min_pages else None
        for first in range(1, count + 1, PAGES_PER_DRAFT):
            last = min(first + PAGES_PER_DRAFT - 1, count)
            draft = used_drafts.get(first, last) if used_drafts is not None else None
            if draft is None:
                draft = _read(pdf, range(first, last + 1), limits, characters, on_page)
                if used_drafts is not None:
                    used_drafts.put(first, draft)
            elif on_page is not None:
                on_page(last, count)
            characters += sum(map(_characters, draft.pages))
            pages.extend(draft.pages)
            repaired = repaired or draft.repaired
        readable = [None if isinstance(page, str) else page for page in pages]
        errors = {number: page for number, page in enumerate(pages, 1) if isinstance(page, str)}
        if not any(readable):
            raise CorruptDocument(errors[1])
        repaired = repaired or pdf.repaired
        return RawPdf(readable, errors, pdf.outline, pdf.metadata, repaired, pdf.form)


def _read(
    pdf: OpenPdf,
    numbers: range,
    limits: Limits,
    characters: int,
    on_page: Callable[[int, int], None] | None,
) -> Draft:
    """Read these pages; `characters` is the number of characters on the pages before."""
    pages: list[PageLines | str] = []
    for number in numbers:
        pages.append(_page(pdf, number))
        characters += _characters(pages[-1])
        limits.check_characters(characters, number)
        if on_page is not None:
            on_page(number, pdf.page_count)
    return Draft(pages, pdf.repaired)


def _page(pdf: OpenPdf, number: int) -> PageLines | str:
    """Return a page, or the reason why it can't be read."""
    try:
        return pdf.page(number)
    except CorruptDocument as error:
        return str(error)


def _characters(page: PageLines | str) -> int:
    return 0 if isinstance(page, str) else sum([len(line.text) for line in page.lines])


def draw_page_with_text(
    data: bytes,
    number: int,
    *,
    dpi: int,
    side: int,
    area: int = 0,
    limits: Limits,
    extractor: ExtractorName = "pymupdf",
) -> tuple[PageLines | None, Any]:
    """Return the text that the file has of a page (None where it can't be read), and the page as
    `OpenPdf.draw` draws it. Raises what OpenPdf.draw and Extractor.opening raise."""
    with opening(data, limits, extractor) as pdf:
        try:
            page = pdf.page(number)
        except PageTooCostly:
            raise  # drawing it would take as long again
        except CorruptDocument:
            page = None
        picture = pdf.draw(number, dpi=dpi, side=side, area=area)
        return page, picture


def _title(metadata: Mapping[str, str], first: PageLines | None) -> str | None:
    """Return the title in the file's metadata, else the largest print on its first page."""
    metadata_title = unwrap(clean(metadata.get("title") or ""))
    junk_starts = ("untitled", "microsoft word", "imagemagick", "powerpoint", "document")
    if (
        len(metadata_title) > 3
        and not metadata_title.lower().startswith(junk_starts)
        and has_words(metadata_title)
    ):
        return metadata_title[:300]
    lines: Sequence[Line] = without_copies(first.lines) if first is not None else ()
    largest = max((round(line.size, 1) for line in lines), default=0)
    headline = unwrap(" ".join(line.text for line in lines if round(line.size, 1) == largest))
    has_smaller_print = any(round(line.size, 1) < largest for line in lines)
    return headline if has_smaller_print and has_words(headline) and len(headline) <= 200 else None


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    fields = {}
    for name, value in metadata.items():
        text = unwrap(clean(value))
        if text and name not in {"title", "encryption"}:
            fields[name] = text[:1000]
    return fields


def _clean_outline(outline: Sequence[Heading]) -> tuple[Heading, ...]:
    titled_entries = [(entry, unwrap(clean(entry.title))[:300]) for entry in outline]
    return tuple(
        Heading(entry.level, title, entry.page) for entry, title in titled_entries if title
    )
