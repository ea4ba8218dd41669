"""Images that lie or are damaged are refused with a reason that people understand."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from switchyard.services.files.errors import CorruptDocument, DocumentTooLarge
from switchyard.services.text import images


def png_that_says(width: int, height: int) -> bytes:
    content = io.BytesIO()
    Image.new("L", (8, 8)).save(content, "PNG")
    head = bytearray(content.getvalue())
    head[16:24] = struct.pack(">II", width, height)
    head[29:33] = struct.pack(">I", zlib.crc32(head[12:29]))
    return bytes(head)


def test_an_image_of_too_many_pixels_is_refused_with_their_number() -> None:
    with pytest.raises(DocumentTooLarge, match=r"^the image has more than the 178,956,970 pixels"):
        images.count_pages(png_that_says(60_000, 60_000), pixels=200_000_000, pages=1)


def test_an_image_without_a_readable_head_is_refused_with_the_same_words_each_time() -> None:
    """Pillow names the place of the file in memory: no two dead letters would be alike."""
    with pytest.raises(CorruptDocument, match=r"^the image is corrupt: its head can't be read$"):
        images.count_pages(png_that_says(0, 0), pixels=200_000_000, pages=1)
