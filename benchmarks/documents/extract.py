"""`make bench ARGS=extract`: reading generated PDFs whose truth is known, against plain PyMuPDF
and pypdfium2."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.documents.scoring import Score
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.pipeline.samples.generated_samples import generate
from switchyard.services.pipeline.text.pdf import read_pdf

KINDS = ("text", "report", "paper", "magazine", "tables", "figures", "invoice", "letter")
LANGUAGES = ("en", "de", "fr", "es", "ru", "zh", "he")
Reader = Callable[[bytes], str]


def _ours(data: bytes) -> str:
    return "\n\n".join(page.text for page in read_pdf(data).pages)


def _ours_by_pdfium(data: bytes) -> str:
    return "\n\n".join(page.text for page in read_pdf(data, extractor="pypdfium2").pages)


def _plain_pymupdf(data: bytes) -> str:
    import pymupdf

    opened: Any = pymupdf.open
    with opened(stream=data, filetype="pdf") as document:
        return "\n\n".join(page.get_text() for page in document)


def _plain_pdfium(data: bytes) -> str:
    import pypdfium2

    with pypdfium2.PdfDocument(data) as document:
        return "\n\n".join(page.get_textpage().get_text_range() for page in document)


READERS: dict[str, Reader] = {
    "switchyard, pymupdf": _ours,
    "switchyard, pypdfium2": _ours_by_pdfium,
    "plain PyMuPDF": _plain_pymupdf,
    "plain pypdfium2": _plain_pdfium,
}


def extract(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Generated PDFs with one to three columns, footnotes, boxes, tables, seven languages: words
    found, words that belong there, words followed by the right word, rows of tables; and speed."""
    made = [
        (sample.kind, sample.blocks, sample.content, sample.page_count)
        for sample in generate(count, seed=12, kinds=KINDS, languages=LANGUAGES)
    ]
    speeds = {name: Row(f"{name}: speed", "pages/s") for name in READERS}
    scores: dict[str, Score] = {}
    for _ in range(rounds):
        for name, read in READERS.items():
            score = scores[name] = Score()
            seconds = 0.0
            for kind, blocks, content, pages in made:
                began = time.perf_counter()
                text = read(content)
                seconds += time.perf_counter() - began
                score.add(kind, blocks, text, pages)
            speeds[name].rounds.append(score.pages / seconds)
    plain = speeds["plain PyMuPDF"]
    for row in speeds.values():
        row.ratio = row.median / plain.median
    speeds["switchyard, pymupdf"].target = "at least 0.6 × plain PyMuPDF"
    rows = list(speeds.values())
    for name, score in scores.items():
        rows += [
            Row(f"{name}: words found", "%", [score.found]),
            Row(f"{name}: words that belong there", "%", [score.precise]),
            Row(f"{name}: in order", "%", [score.order]),
            Row(f"{name}: rows of tables", "%", [score.tables]),
        ]
    for kind in KINDS:
        for name, score in scores.items():
            if kind in score.by_kind:
                rows.append(Row(f"{kind}, in order, {name}", "%", [score.by_kind[kind].order]))
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"extract": (extract, 3, 112)}
