"""A quick replacement of the package `rapidocr` for workers of tests, and their processes.

All code around it (drawing, order, processes, limits) is real. On a page of `make_numbered_pages`
it reads the number that the page's colour encodes.

    monkeypatch.setenv("PYTHONPATH", str(install(tmp_path / "quick")))
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

MODELS = ("PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx")


def text_of(number: int) -> str:
    """Return what is read of that page."""
    return f"This is slip number {number} of the heap"


def make_numbered_pages(pages: int) -> bytes:
    """Make a PDF whose pages are pictures, each in the colour of its number, with a white corner: a
    page of one colour is not read."""
    import pymupdf

    document = pymupdf.open()
    for number in range(1, pages + 1):
        picture = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.IRect(0, 0, 20, 20))
        picture.set_rect(picture.irect, (number // 256, number % 256, 0))
        picture.set_rect(pymupdf.IRect(0, 0, 2, 2), (255, 255, 255))
        page = document.new_page(width=100, height=100)
        page.insert_image(page.rect, pixmap=picture)
    return bytes(document.tobytes(no_new_id=True))


def install(directory: Path) -> Path:
    """Copy this package into a directory under the name of the real one, and return the
    directory."""
    package = directory / "rapidocr"
    shutil.copytree(Path(__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "models").mkdir()
    for name in MODELS:
        (package / "models" / name).touch()
    return directory


class RapidOCR:
    """The methods that `services/pipeline/text/ocr.py` calls."""

    def __init__(self, params: Any) -> None:
        return

    def preprocess_img(self, picture: Any) -> tuple[Any, None]:
        return picture, None

    def detect_and_crop(self, picture: Any, record: None) -> tuple[list[Any], Any]:
        height, width = picture.shape[:2]
        box = np.array([[9, 9], [width - 9, 9], [width - 9, height - 9], [9, height - 9]], float)
        return [picture], SimpleNamespace(boxes=[box])

    def recognize_txt(self, crops: list[Any]) -> Any:
        _, low, high = (int(shade) for shade in crops[0][50, 50])  # blue, green, red
        return SimpleNamespace(txts=[text_of(high * 256 + low)], scores=[1.0])
