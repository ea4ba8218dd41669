"""Images with a wrong header or damage are refused with a reason that people understand."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    UnsupportedDocument,
)
from switchyard.services.pipeline.text import images


def make_png(width: int, height: int) -> bytes:
    """Return a small PNG whose header names this size."""
    content = io.BytesIO()
    Image.new("L", (8, 8)).save(content, "PNG")
    head = bytearray(content.getvalue())
    head[16:24] = struct.pack(">II", width, height)
    head[29:33] = struct.pack(">I", zlib.crc32(head[12:29]))
    return bytes(head)


def test_an_image_of_too_many_pixels_is_refused_with_their_number() -> None:
    with pytest.raises(DocumentTooLarge, match=r"^the image has more than the 178,956,970 pixels"):
        images.count_pages(make_png(60_000, 60_000), max_pixels=200_000_000, max_pages=1)


def test_an_image_without_a_readable_head_is_refused_with_the_same_words_each_time() -> None:
    """Pillow's error has the file's address in memory, so that no two dead letters would be
    alike."""
    with pytest.raises(CorruptDocument, match=r"^the image is corrupt: its header can't be read$"):
        images.count_pages(make_png(0, 0), max_pixels=200_000_000, max_pages=1)


def make_tiff(*compressions: int, big: bool = False) -> bytes:
    """Return a TIFF with a page for each compression. Only its header names the compressions: the
    data is as Pillow wrote it."""
    content = io.BytesIO()
    first, *others = [Image.new("L", (8, 8), 255) for _ in compressions]
    first.save(content, "TIFF", save_all=True, append_images=others, big_tiff=big)
    data = bytearray(content.getvalue())
    entry = struct.pack("<HHQ", 259, 3, 1) if big else struct.pack("<HHL", 259, 3, 1)
    offset = 0
    for compression in compressions:
        offset = data.index(entry, offset) + len(entry)
        struct.pack_into("<H", data, offset, compression)
    return bytes(data)


@pytest.mark.parametrize(
    ("tiff", "compression_name"),
    [
        (make_tiff(34712), "JPEG 2000"),
        (make_tiff(34712, big=True), "JPEG 2000"),
        (make_tiff(1, 50002), "JPEG XL"),
        (make_tiff(65_000), "method 65000"),
    ],
)
def test_a_tiff_of_an_unknown_compression_is_refused_with_its_name_and_a_remedy(
    tiff: bytes, compression_name: str
) -> None:
    message = (
        f"^the TIFF is compressed with {compression_name}, "
        "which can't be read here: save it with LZW"
    )
    with pytest.raises(UnsupportedDocument, match=message):
        images.count_pages(tiff, max_pixels=1_000, max_pages=5)


def test_a_tiff_whose_compression_no_decoder_reads_is_refused_when_it_is_drawn() -> None:
    with pytest.raises(UnsupportedDocument, match="compressed with WebP"):
        images.draw(make_tiff(50001), 1, pixels=1_000, side=8)


def test_a_damaged_tiff_of_a_known_compression_is_corrupt() -> None:
    with pytest.raises(CorruptDocument):
        images.draw(make_tiff(8), 1, pixels=1_000, side=8)


def draw_colours(image: Image.Image, file_format: str) -> set[tuple[int, ...]]:
    """Return the colours of an image as OCR gets it."""
    content = io.BytesIO()
    image.save(content, file_format)
    colours = images.draw(content.getvalue(), 1, pixels=1_000, side=8).getcolors()
    assert colours is not None
    return {colour for _, colour in colours if isinstance(colour, tuple)}


@pytest.mark.parametrize(
    ("ink", "paper"),
    [((255, 255, 255), (0, 0, 0)), ((230, 230, 90), (0, 0, 0)), ((0, 0, 0), (255, 255, 255))],
)
def test_letters_on_a_transparent_ground_are_seen_whatever_their_colour(
    ink: tuple[int, int, int], paper: tuple[int, int, int]
) -> None:
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.putpixel((3, 3), (*ink, 255))
    assert draw_colours(image, "PNG") == {ink, paper}


def test_a_wholly_transparent_image_is_white() -> None:
    assert draw_colours(Image.new("RGBA", (8, 8), (9, 9, 9, 0)), "PNG") == {(255, 255, 255)}


@pytest.mark.parametrize(("mode", "ink"), [("F", 0.5), ("F", 40_000.0), ("I", 65_535)])
def test_shades_of_any_range_are_seen(mode: str, ink: float) -> None:
    image = Image.new(mode, (8, 8), 0)
    image.putpixel((3, 3), ink)
    assert draw_colours(image, "TIFF") == {(0, 0, 0), (255, 255, 255)}
    assert len(draw_colours(Image.new(mode, (8, 8), 3), "TIFF")) == 1
