"""Slips of paper as pictures and scans, and the text that the pipeline has read on them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymupdf
from PIL import Image

from switchyard.services.pipeline.text.pdf import draw_page_with_text
from switchyard.services.pipeline.text.pdf_pages import Limits
from tests.integration.pipeline.conftest import Pipeline
from tests.support.pdfs import scan, slips

SLIPS = ("The heron waits in the reeds", "A lantern in the harbour", "Salt upon the window")


def read_page_texts(pipeline: Pipeline, document_id: str) -> list[str]:
    key = f"intermediate/{document_id}/extract_text/output.json"
    extracted = json.loads(pipeline.storage.get(key))["result"]
    return [page["text"] for page in extracted["pages"]]


def draw_page(content: bytes, number: int = 1) -> np.ndarray:
    _, picture = draw_page_with_text(content, number, dpi=150, side=3000, limits=Limits())
    return np.asarray(picture)


def convert_to_image(content: bytes, image_format: str, **save_options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(draw_page(content)).save(buffer, image_format, **save_options)
    return buffer.getvalue()


def make_pdf_with_scans(
    texts: Sequence[str], scanned: Sequence[int], blank_before: Sequence[int] = ()
) -> bytes:
    """Return a PDF with a slip for each text. The texts with a number in `scanned` are pictures,
    and before those in `blank_before` stands an empty page. Numbers begin at 1."""
    document = pymupdf.open()
    for number, text in enumerate(texts, 1):
        if number in blank_before:
            document.new_page(width=220, height=220)
        page = slips([text])
        document.insert_pdf(
            pymupdf.open(stream=scan(page) if number in scanned else page, filetype="pdf")
        )
    return bytes(document.tobytes())
