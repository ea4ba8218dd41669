"""Make up sample PDFs of many kinds and languages, the same for the same seed.

A sample depends on its seed and number alone: number 7 of a seed is the same document whether ten
or a thousand are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from switchyard.services.common.errors import InvalidInput
from switchyard.services.pipeline.samples.canvas import Block, Canvas
from switchyard.services.pipeline.samples.phrases import TextGenerator, languages
from switchyard.services.pipeline.samples.sample_kinds import KINDS, SampleKind
from switchyard.services.pipeline.samples.typeface import pymupdf

MAX_SEED = 2**63 - 1
SCAN_DPI = 150


class UnknownSample(InvalidInput):
    """There is no such kind or language."""


@dataclass(frozen=True, slots=True)
class GeneratedSample:
    """A document that was made up, with the truth about it."""

    filename: str
    kind: str
    language: str
    subject: str
    title: str
    content: bytes
    page_count: int
    blocks: tuple[Block, ...]
    """The blocks of its text, in reading order."""
    furniture: tuple[Block, ...]
    """Running heads and page numbers, which are no part of the text."""

    @property
    def truth(self) -> dict[str, Any]:
        """The truth as JSON, with which the text that is read from the document is compared."""
        return {
            "filename": self.filename,
            "kind": self.kind,
            "language": self.language,
            "subject": self.subject,
            "title": self.title,
            "page_count": self.page_count,
            "blocks": [block.as_json() for block in self.blocks],
            "furniture": [block.as_json() for block in self.furniture],
        }


def kinds() -> tuple[str, ...]:
    """Return the kinds of documents that can be made."""
    return tuple(KINDS)


def generate(
    count: int,
    *,
    seed: int = 0,
    kinds: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
) -> Iterator[GeneratedSample]:
    """Yield `count` documents, of all kinds and languages where none are named.

    Each is drawn when it is taken from the iterator, which takes some hundredths of a second, in
    Hebrew up to some seconds. Raises UnknownSample at the call, ExtraNotInstalled with the first
    document.
    """
    chosen_kinds, chosen_languages = check_choice(kinds, languages)
    return (_sample(seed, number, chosen_kinds, chosen_languages) for number in range(count))


def check_choice(
    chosen_kinds: Sequence[str] | None, chosen_languages: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the kinds and languages to use, all where none are named. Raises UnknownSample."""
    return (
        _check_known("kind", chosen_kinds, tuple(KINDS)),
        _check_known("language", chosen_languages, languages()),
    )


def _check_known(noun: str, names: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    for each in names or ():
        if each not in known:
            raise UnknownSample(f"there is no {noun} {each[:50]!r}: use {', '.join(known)}")
    return tuple(dict.fromkeys(names)) if names else known


def _sample(
    seed: int, number: int, chosen_kinds: Sequence[str], chosen_languages: Sequence[str]
) -> GeneratedSample:
    # Kinds in turn, so that a few samples have as many kinds as possible; languages change slower.
    name = chosen_kinds[number % len(chosen_kinds)]
    random = Random(f"{seed}/{number}")
    language = chosen_languages[(number // len(chosen_kinds) + number) % len(chosen_languages)]
    kind = KINDS[name]
    prose = TextGenerator(random, language)
    title = prose.title()
    canvas = Canvas(
        random,
        prose,
        columns=kind.columns,
        running_head=title if kind.has_running_head else None,
        size=kind.font_size,
    )
    kind.fill(canvas, title)
    with canvas.finish(title, prose.person()) as document:
        content, suffix = _content(document, kind, random)
        pages = 1 if kind.is_photo else document.page_count
    return GeneratedSample(
        filename=f"{name}-{language}-{seed}-{number:04d}.{suffix}",
        kind=name,
        language=language,
        subject=prose.subject,
        title=title,
        content=content,
        page_count=pages,
        blocks=tuple(block for block in canvas.blocks if block.page <= pages),
        furniture=tuple(canvas.furniture),
    )


def _content(document: Any, kind: SampleKind, random: Random) -> tuple[bytes, str]:
    if kind.is_photo:
        return _simulate_scan(document[0], random).tobytes("jpeg", jpg_quality=70), "jpg"
    if not kind.is_scan:
        return bytes(document.tobytes(deflate=True, garbage=4, no_new_id=True)), "pdf"
    with pymupdf().open() as scan:
        for page in document:
            picture = _simulate_scan(page, random)
            scanned_page = scan.new_page(width=page.rect.width, height=page.rect.height)
            scanned_page.insert_image(
                scanned_page.rect, stream=picture.tobytes("jpeg", jpg_quality=70)
            )
        scan.set_metadata({})
        return bytes(scan.tobytes(garbage=3, no_new_id=True)), "pdf"


def _simulate_scan(page: Any, random: Random) -> Any:
    """Return a page as a scanner sees it: a little askew, and with noise."""
    import numpy as np

    library = pymupdf()
    zoom = SCAN_DPI / 72
    rotation = library.Matrix(zoom, zoom).prerotate(random.uniform(-0.6, 0.6))
    picture = page.get_pixmap(matrix=rotation, colorspace=library.csGRAY, alpha=False)
    shades = np.frombuffer(picture.samples, np.uint8).astype(np.float32)
    noise = np.random.default_rng(random.getrandbits(32)).normal(0, 6, shades.size)
    pixels = np.clip(shades * 0.96 + noise, 0, 255).astype(np.uint8)
    return library.Pixmap(library.csGRAY, picture.width, picture.height, pixels.tobytes(), False)
