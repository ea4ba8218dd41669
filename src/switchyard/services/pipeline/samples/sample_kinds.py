"""The kinds of sample documents: each draws one on a canvas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from switchyard.services.pipeline.samples.canvas import Canvas
from switchyard.services.pipeline.samples.typeface import pymupdf


@dataclass(frozen=True, slots=True)
class SampleKind:
    """A kind of document."""

    fill: Callable[[Canvas, str], None]
    """Draws the document on a canvas, with that title."""
    columns: int = 1
    has_running_head: bool = False
    is_scan: bool = False
    """Whether its pages are pictures without text."""
    font_size: float = 10.5
    """Size of its text, in points."""
    is_photo: bool = False
    """Whether it is a picture as a camera makes it: a JPEG instead of a PDF."""


def _text(canvas: Canvas, title: str) -> None:
    canvas.title(title, canvas.prose.person())
    for heading in canvas.prose.headings(canvas.random.randint(2, 4)):
        canvas.heading(heading)
        for _ in range(canvas.random.randint(1, 3)):
            canvas.paragraph(canvas.prose.paragraph())


def _report(canvas: Canvas, title: str) -> None:
    canvas.title(title, canvas.prose.company())
    for number, heading in enumerate(canvas.prose.headings(6), 1):
        canvas.heading(heading)
        for _ in range(canvas.random.randint(2, 4)):
            canvas.paragraph(canvas.prose.paragraph(4, 8))
        if canvas.random.random() < 0.7:
            canvas.footnote(str(number), canvas.prose.sentence())


def _paper(canvas: Canvas, title: str) -> None:
    prose, random = canvas.prose, canvas.random
    canvas.title(title, f"{prose.person()}, {prose.person()}")
    count = random.randint(6, 14)
    canvas.heading(prose.word("abstract"))
    canvas.paragraph(prose.paragraph())
    for heading in prose.headings(4):
        canvas.heading(heading)
        for _ in range(random.randint(2, 4)):
            citation = f" [{random.randint(1, count)}]"
            canvas.paragraph(prose.paragraph(3, 7) + ("" if prose.is_rtl else citation))
        if random.random() < 0.4:
            canvas.footnote("*", prose.sentence())
    canvas.heading(prose.word("references"))
    for number in range(1, count + 1):
        work = prose.reference(number)
        canvas.paragraph(f"{work.label} {work.text}", kind="reference")


def _magazine(canvas: Canvas, title: str) -> None:
    canvas.title(title)
    for heading in canvas.prose.headings(3):
        canvas.heading(heading)
        for _ in range(canvas.random.randint(2, 3)):
            canvas.paragraph(canvas.prose.paragraph())
        if canvas.random.random() < 0.6:
            canvas.box(canvas.prose.word("box"), canvas.prose.paragraph(2, 3))


def _tables(canvas: Canvas, title: str) -> None:
    prose, random = canvas.prose, canvas.random
    canvas.title(title)
    for number in range(1, random.randint(2, 3) + 1):
        canvas.paragraph(prose.paragraph(2, 4))
        years = [str(2018 + offset) for offset in range(random.randint(2, 4))]
        # The second table is longer than a page.
        row_count = random.randint(40, 60) if number == 2 else random.randint(4, 9)
        items = prose.items()
        rows = [(prose.word("item"), *years)]
        for row in range(row_count):
            name = items[row] if row < len(items) else f"{items[row % len(items)]} {row}"
            rows.append((name, *(f"{random.randint(10, 9999)}" for _ in years)))
        caption = f"{prose.word('table')} {number}. {prose.title()}"
        canvas.table(caption, rows, ruled=random.random() < 0.6)


def _figures(canvas: Canvas, title: str) -> None:
    prose, random = canvas.prose, canvas.random
    canvas.title(title, prose.person())
    drawings = [_bars, _curve, _picture]
    random.shuffle(drawings)
    for number, drawing in enumerate(drawings[: random.randint(2, 3)], 1):
        canvas.paragraph(prose.paragraph())
        caption = f"{prose.word('figure')} {number}. {prose.title()}"
        canvas.figure(_with_random(drawing, Random(random.random())), caption)


def _invoice(canvas: Canvas, title: str) -> None:
    prose, random = canvas.prose, canvas.random
    number = f"{random.randint(2019, 2024)}-{random.randint(100, 9999)}"
    canvas.title(f"{prose.word('invoice')} {number}", prose.company())
    rows = [(prose.word("item"), prose.word("quantity"), prose.word("amount"))]
    total = 0
    for item in prose.items():
        amount = random.randint(2_000, 90_000)
        total += amount
        rows.append((item, str(random.randint(1, 40)), f"{amount / 100:.2f}"))
    rows.append((prose.word("total"), "", f"{total / 100:.2f}"))
    canvas.table("", rows, ruled=True)
    canvas.paragraph(prose.sentence())


def _letter(canvas: Canvas, title: str) -> None:
    prose = canvas.prose
    canvas.title(title)
    canvas.paragraph(prose.word("dear"))
    for _ in range(canvas.random.randint(2, 4)):
        canvas.paragraph(prose.paragraph())
    canvas.paragraph(prose.word("regards"))
    canvas.paragraph(prose.company())


Drawing = Callable[[Random, Any, Any, Any], list[str]]


def _with_random(drawing: Drawing, random: Random) -> Callable[[Any, Any, Any], list[str]]:
    return lambda page, shape, frame: drawing(random, page, shape, frame)


def _bars(random: Random, page: Any, shape: Any, frame: Any) -> list[str]:
    count = random.randint(4, 8)
    step = frame.width / count
    colour = [random.random() * 0.7 for _ in range(3)]
    labels = []
    for number in range(count):
        height = random.uniform(0.15, 0.95) * (frame.height - 14)
        left = frame.x0 + number * step
        top = frame.y1 - 14 - height
        shape.draw_rect(pymupdf().Rect(left + step * 0.15, top, left + step * 0.85, frame.y1 - 14))
        shape.finish(fill=colour, color=colour, width=0.5)
        labels.append(str(2010 + number))
        shape.insert_text((left + step * 0.25, frame.y1 - 3), labels[-1], fontsize=7)
    _axes(shape, frame)
    return labels


def _curve(random: Random, page: Any, shape: Any, frame: Any) -> list[str]:
    for _ in range(random.randint(1, 3)):
        height = frame.y0 + random.uniform(0.2, 0.8) * frame.height
        points = []
        for number in range(25):
            height += random.uniform(-0.08, 0.08) * frame.height
            height = min(max(height, frame.y0 + 4), frame.y1 - 18)
            points.append((frame.x0 + number * frame.width / 24, height))
        shape.draw_polyline(points)
        shape.finish(color=[random.random() * 0.8 for _ in range(3)], width=1.2, closePath=False)
    _axes(shape, frame)
    return []


def _axes(shape: Any, frame: Any) -> None:
    corner = (frame.x0, frame.y1 - 14)
    shape.draw_line((frame.x0, frame.y0), corner)
    shape.draw_line(corner, (frame.x1, frame.y1 - 14))
    shape.finish(width=0.8, closePath=False)


def _picture(random: Random, page: Any, shape: Any, frame: Any) -> list[str]:
    """Draw a picture made of pixels, as a photograph is."""
    import io

    import numpy as np
    from PIL import Image

    y, x = np.mgrid[0:180, 0:320] / 180
    waves = sum(
        np.sin(random.uniform(2, 12) * x + random.uniform(2, 12) * y + random.uniform(0, 6))
        for _ in range(4)
    )
    shades = np.stack([(waves + 4) * random.uniform(16, 31) for _ in range(3)], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(shades, 0, 255).astype(np.uint8)).save(buffer, "PNG")
    page.insert_image(frame, stream=buffer.getvalue())
    return []


KINDS: Mapping[str, SampleKind] = {
    "text": SampleKind(_text),
    "report": SampleKind(_report, has_running_head=True),
    "paper": SampleKind(_paper, columns=2, has_running_head=True, font_size=9.5),
    "magazine": SampleKind(_magazine, columns=3, has_running_head=True, font_size=9),
    "tables": SampleKind(_tables),
    "figures": SampleKind(_figures),
    "invoice": SampleKind(_invoice),
    "letter": SampleKind(_letter, font_size=11.5),
    "scan": SampleKind(_text, is_scan=True, font_size=12),
    "image": SampleKind(_letter, is_photo=True, font_size=13),
}
