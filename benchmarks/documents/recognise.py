"""`make bench ARGS=ocr`: pages that are pictures, by kind, against a plain RapidOCR loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.documents.scoring import accuracy
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.pipeline.samples.canvas import Block
from switchyard.services.pipeline.samples.generated_samples import generate
from switchyard.services.pipeline.text.ocr import DPI, MAX_SIDE, read_picture
from switchyard.services.pipeline.text.pdf import draw_page_with_text
from switchyard.services.pipeline.text.pdf_pages import Limits

Picture = Any
Page = tuple[Picture, Sequence[Block]]
Change = Callable[[Picture], Picture]


def _turned(quarters: int) -> Change:
    import numpy as np

    return lambda picture: np.ascontiguousarray(np.rot90(picture, quarters))


def _skewed(picture: Picture) -> Picture:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.fromarray(picture).rotate(3, expand=True, fillcolor="white"))


def _noisy(picture: Picture) -> Picture:
    import numpy as np

    noise = np.random.default_rng(1).normal(0, 25, picture.shape)
    return np.clip(picture * 0.9 + noise, 0, 255).astype(np.uint8)


def _clean(picture: Picture) -> Picture:
    return picture


CASES: dict[str, tuple[str, str, Change]] = {
    "clean": ("text", "en", _clean),
    "rotated by 90°": ("text", "en", _turned(1)),
    "rotated by 180°": ("text", "en", _turned(2)),
    "rotated by 270°": ("text", "en", _turned(3)),
    "skewed by 3°": ("text", "en", _skewed),
    "noisy": ("text", "en", _noisy),
    "two columns": ("paper", "en", _clean),
    "German": ("text", "de", _clean),
    "French": ("text", "fr", _clean),
    "Spanish": ("text", "es", _clean),
    "Chinese": ("text", "zh", _clean),
}
"""Kind and language of the document, and what was done to its picture."""


def _pages(kind: str, language: str, change: Change, count: int) -> list[Page]:
    """The first pages of so many documents, with what stands on them."""
    return [
        (
            change(_drawn(sample.content)),
            [block for block in (*sample.blocks, *sample.furniture) if block.page == 1],
        )
        for sample in generate(count, seed=5, kinds=[kind], languages=[language])
    ]


def _drawn(content: bytes) -> Picture:
    _, picture = draw_page_with_text(content, 1, dpi=DPI, side=MAX_SIDE, limits=Limits())
    return picture


def ocr(stage: Stage, rounds: int, count: int) -> list[Row]:
    """Pages of A4 at 150 dpi in one process: words that are read right, by kind; and pages/s."""
    from rapidocr import RapidOCR

    plain: Any = RapidOCR(
        params={
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )

    def read_plainly(picture: Picture) -> str:
        return "\n".join(plain(picture[:, :, ::-1]).txts or ())

    def read_ours(picture: Picture) -> str:
        return read_picture(picture).text

    readers = {"switchyard": read_ours, "plain RapidOCR": read_plainly}
    speeds = {name: Row(f"{name}: speed", "pages/s") for name in readers}
    clean = _pages(*CASES["clean"], count)
    for read in readers.values():
        read(clean[0][0])  # the models are loaded
    for _ in range(rounds):
        for name, read in readers.items():
            began = time.perf_counter()
            for picture, _ in clean:
                read(picture)
            speeds[name].rounds.append(count / (time.perf_counter() - began))
    speeds["switchyard"].ratio = speeds["switchyard"].median / speeds["plain RapidOCR"].median
    speeds["switchyard"].target = "at least 0.9 × plain RapidOCR"
    rows = list(speeds.values())
    for case, (kind, language, change) in CASES.items():
        pages = _pages(kind, language, change, count)
        for name, read in readers.items():
            right = [accuracy(blocks, read(picture)) for picture, blocks in pages]
            rows.append(Row(f"{case}: words right, {name}", "%", right))
    return rows


ALL: dict[str, tuple[Measurement, int, int]] = {"ocr": (ocr, 3, 5)}
