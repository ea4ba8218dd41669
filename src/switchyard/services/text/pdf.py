"""The text of a PDF, page by page, as Markdown.

Runs in a process of its own: a document that makes a library crash, hang or eat memory takes only
that process with it. Limits stop what can be seen before it hurts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from switchyard.services.files.errors import CorruptDocument
from switchyard.services.text.composing import Heading, PageLines, compose
from switchyard.services.text.layout import Line
from switchyard.services.text.pages import Limits, PdfPage, PdfText, RawPdf
from switchyard.services.text.plain import clean, count_words, unwrap

ExtractorName = Literal["pymupdf", "pypdfium2"]


class Extractor(Protocol):
    """A library that reads PDFs: a module with two functions."""

    def read(self, data: bytes, limits: Limits) -> RawPdf:
        """What stands on the pages, in any order.

        Raises CorruptDocument (also for a file that is empty or cut off, or of which no page can
        be read), EncryptedDocument, DocumentTooLarge, and MemoryError.
        """

    def draw(self, data: bytes, number: int, *, dpi: int, side: int, limits: Limits) -> Any:
        """A page, from 1, as rows of pixels (red, green, blue): at that resolution, or at a lower
        one where it would be longer or wider than `side` pixels. Raises as `read`."""


def extractor_named(name: ExtractorName) -> Extractor:
    """The extractor of the setting; its library is loaded when it is first used."""
    from switchyard.services.text import mupdf, pdfium

    return cast("Extractor", mupdf if name == "pymupdf" else pdfium)


def read_pdf(
    data: bytes, limits: Limits | None = None, extractor: ExtractorName = "pymupdf"
) -> PdfText:
    """Read a whole PDF. Raises as Extractor.read."""
    limits = limits or Limits()
    if not data:
        raise CorruptDocument("the PDF is empty")
    raw = extractor_named(extractor).read(data, limits)
    there = [page for page in raw.pages if page is not None]
    texts = iter(compose(there, raw.outline))
    pages = []
    for number, page in enumerate(raw.pages, 1):
        text = "" if page is None else next(texts)
        pages.append(PdfPage(number, text if count_words(text) else "", is_broken=page is None))
    broken = any(page.is_broken for page in pages)
    return PdfText(
        pages=tuple(pages),
        title=_title(raw.metadata, raw.pages[0]),
        metadata=_metadata(raw.metadata),
        repaired=raw.repaired or broken,
        outline=_cleaned(raw.outline),
    )


def draw_page(
    data: bytes,
    number: int,
    *,
    dpi: int,
    side: int,
    limits: Limits,
    extractor: ExtractorName = "pymupdf",
) -> Any:
    """See Extractor.draw."""
    return extractor_named(extractor).draw(data, number, dpi=dpi, side=side, limits=limits)


def _title(metadata: Mapping[str, str], first: PageLines | None) -> str | None:
    """The title the file gives, else the largest print on its first page."""
    named = unwrap(clean(metadata.get("title") or ""))
    junk = ("untitled", "microsoft word", "imagemagick", "powerpoint", "document")
    if len(named) > 3 and not named.lower().startswith(junk) and count_words(named):
        return named[:300]
    lines: Sequence[Line] = first.lines if first is not None else ()
    largest = max((round(line.size, 1) for line in lines), default=0)
    headline = unwrap(" ".join(line.text for line in lines if round(line.size, 1) == largest))
    others = any(round(line.size, 1) < largest for line in lines)
    return headline if others and count_words(headline) and len(headline) <= 200 else None


def _metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in metadata.items():
        text = unwrap(clean(value))
        if text and name not in {"title", "encryption"}:
            found[name] = text[:1000]
    return found


def _cleaned(outline: Sequence[Heading]) -> tuple[Heading, ...]:
    named = [(entry, unwrap(clean(entry.title))[:300]) for entry in outline]
    return tuple(Heading(entry.level, title, entry.page) for entry, title in named if title)
