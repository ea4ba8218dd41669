"""Small sample PDFs, for the demo and for trying things out.

Eight short articles on four subjects, two to a subject, so that search finds something and links
mean something. A sample has the same bytes each time; a number beyond the eighth makes another
edition of an article, so that there are any number of different documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.services.pipeline.samples.article_texts import ARTICLES, Article

_A4 = (595, 842)
"""Width and height of a page, in points."""
_MARGIN = 64
_PARAGRAPHS_PER_PAGE = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """One PDF."""

    filename: str
    title: str
    content: bytes


def sample(number: int) -> Sample:
    """Make the sample of that number, from 0. Raises ValueError for a negative one."""
    if number < 0:
        raise ValueError(f"samples are numbered from 0, not {number}")
    edition, article_number = divmod(number, len(ARTICLES))
    article = ARTICLES[article_number]
    title = article.title if edition == 0 else f"{article.title}, edition {edition + 1}"
    suffix = "" if edition == 0 else f"-{edition + 1}"
    return Sample(f"{article.slug}{suffix}.pdf", title, _draw_pdf(article, title))


def samples(count: int = len(ARTICLES)) -> Iterator[Sample]:
    """Make the first `count` samples."""
    return (sample(number) for number in range(count))


def write_samples(directory: Path, count: int = len(ARTICLES)) -> list[Path]:
    """Write the first `count` samples into a directory, which is made if need be. Return their
    paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for sample in samples(count):
        path = directory / sample.filename
        path.write_bytes(sample.content)
        paths.append(path)
    return paths


def _draw_pdf(article: Article, title: str) -> bytes:
    import pymupdf

    library: Any = pymupdf
    document = library.open()
    paragraphs = article.text.split("\n\n")
    for start in range(0, len(paragraphs), _PARAGRAPHS_PER_PAGE):
        page = document.new_page(width=_A4[0], height=_A4[1])
        top = _MARGIN
        if start == 0:
            page.insert_text((_MARGIN, top + 20), title, fontname="hebo", fontsize=20)
            top += 56
        for paragraph in paragraphs[start : start + _PARAGRAPHS_PER_PAGE]:
            box = library.Rect(_MARGIN, top, _A4[0] - _MARGIN, _A4[1] - _MARGIN)
            space_left = page.insert_textbox(
                box, paragraph, fontname="tiro", fontsize=12, lineheight=1.3
            )
            if space_left < 0:
                raise ValueError(f"{article.slug}: a paragraph does not fit its page")
            top = box.y1 - space_left + 14
    # No dates and random ids: with them, each run would make other bytes, and so another document.
    document.set_metadata({"title": title, "author": "Switchyard samples"})
    content = bytes(document.tobytes(deflate=True, garbage=3, no_new_id=True))
    document.close()
    return content
