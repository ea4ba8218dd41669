"""Cut out the figures and tables of a document as pictures, with their captions.

Runs in a process of its own, like all code that opens foreign files. Pictures are drawn and encoded
here, whatever the file contains: no bytes of the file are handed on.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    UnsupportedDocument,
)
from switchyard.services.common.files.media_types import IMAGES, PDF
from switchyard.services.pipeline.text.page_process import PageProcess
from switchyard.services.pipeline.text.pdf_pages import Box, Limits
from switchyard.services.pipeline.text.plain_text import clean, unwrap

if TYPE_CHECKING:
    from PIL.Image import Image

    from switchyard.services.pipeline.text.ocr import SourceFile

FIGURES_VERSION = "figures-3"
MAX_FIGURES = 100
MAX_SIDE = 1_500
"""Longest side of a picture, in pixels."""
MEMORY_MB = 2048
MEDIA_TYPES = {"png": "image/png", "jpg": "image/jpeg"}
"""Media types of the pictures' encodings, by the suffix of their files."""
_DPI = 150
_MAX_PIXELS = 24_000_000
"""Highest number of pixels of a drawn page, which is then cut into pieces."""
_LONG_PAGE_RATIO = 2
"""A page is cut into pieces if it is at least this many times as long as wide."""
_MAX_PIECES = 12
_OVERLAP = 150
"""Pixels that two pieces share, so that a line is whole in one of them."""
_MAX_PNG_BYTES = 400_000
"""Largest PNG, in bytes; a larger picture is a photograph, and becomes a JPEG."""
_MAX_DRAWINGS = 5_000
"""Drawn lines and areas of a page above which figures are not looked for among them: a map has a
million."""
_MIN_SIDE = 50.0
"""Smallest width and height of a figure, in points; a smaller one is an ornament."""
_WHOLE_PAGE_SHARE = 0.85
"""A picture that covers more than this part of the page is the page, scanned."""
_MAX_CAPTION_DISTANCE = 45.0
"""Largest distance between a figure and its caption, in points."""
_CAPTION = re.compile(
    r"\s*(?:fig(?:ure|\.|s\.)?|abb(?:ildung|\.)|tab(?:le|elle|leau|la|\.)|figura|chart|plate"
    r"|рис(?:унок|\.)|таблица|图|表|איור|טבלה)\s*\.?\s*\d",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure or a table, cut out."""

    page: int
    """From 1."""
    kind: Literal["figure", "table", "image"]
    """`image`: a page of an image file."""
    caption: str
    """The text of the caption; empty where none was found."""
    width: int
    height: int
    suffix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class CutPictures:
    """The pictures of a document."""

    pictures: list[Picture]
    page_errors: dict[int, str]
    """Why pages could not be searched, by their number."""


def cut(original: SourceFile) -> CutPictures:
    """Cut out the figures of a document, from the first page on, at most MAX_FIGURES.

    Raises CorruptDocument, EncryptedDocument, DocumentTooLarge, UnsupportedDocument, NotStored and
    MemoryError.
    """
    data = original.storage.get(original.key)
    if original.media_type in IMAGES:
        return _cut_image(data)
    if original.media_type != PDF:
        raise UnsupportedDocument("plain text has no figures")
    return _cut_pdf(data)


class NoSuchPage(PermanentError):
    """The document has fewer pages."""


def page_pictures(original: SourceFile, number: int) -> list[Picture]:
    """Draw a whole page, from 1; a long one in pieces that overlap, in order. Raises NoSuchPage,
    and as `cut`."""
    pieces = _pieces(_draw_page(original, number, area=_MAX_PIXELS))
    return [_encode(piece, number, "image", "") for piece in pieces]


def page_picture(original: SourceFile, number: int) -> Picture:
    """Draw a whole page, from 1, in one piece of at most MAX_SIDE, however long it is. Raises as
    `page_pictures`."""
    return _encode(_draw_page(original, number, area=0), number, "image", "")


def _draw_page(original: SourceFile, number: int, *, area: int) -> Image:
    from PIL import Image as Images

    from switchyard.services.pipeline.text import images
    from switchyard.services.pipeline.text.pdf import opening

    data = original.storage.get(original.key)
    limits = Limits()
    if original.media_type in IMAGES:
        return images.draw(data, number, pixels=limits.page_pixels, side=MAX_SIDE, area=area)
    if original.media_type != PDF:
        raise UnsupportedDocument("plain text has no pictures")
    with opening(data, limits, original.extractor) as pdf:
        if number > (count := pdf.page_count):
            raise NoSuchPage(f"the document has no page {number}: it has {count}")
        return Images.fromarray(pdf.draw(number, dpi=_DPI, side=MAX_SIDE, area=area))


def _pieces(picture: Image) -> list[Image]:
    """Scale a picture to the size that models accept. A long one is cut into pieces: scaled as a
    whole, its print would become too small."""
    short, long = sorted(picture.size)
    if long <= max(MAX_SIDE, _LONG_PAGE_RATIO * short):
        picture.thumbnail((MAX_SIDE, MAX_SIDE))
        return [picture]
    scale = min(1.0, MAX_SIDE / short, _MAX_PIECES * (MAX_SIDE - _OVERLAP) / long)
    picture.thumbnail((ceil(picture.width * scale), ceil(picture.height * scale)))
    wide, high = picture.size
    return [
        picture.crop(
            (0, start, wide, min(start + MAX_SIDE, high))
            if high > wide
            else (start, 0, min(start + MAX_SIDE, wide), high)
        )
        for start in range(0, max(max(wide, high) - _OVERLAP, 1), MAX_SIDE - _OVERLAP)
    ]


def _cut_image(data: bytes) -> CutPictures:
    from switchyard.services.pipeline.text import images

    limits = Limits()
    pictures: list[Picture] = []
    errors: dict[int, str] = {}
    count = images.count_pages(data, max_pixels=limits.page_pixels, max_pages=limits.pages)
    for number in range(1, min(count, MAX_FIGURES) + 1):
        try:
            picture = images.draw(
                data, number, pixels=limits.page_pixels, side=MAX_SIDE, area=_MAX_PIXELS
            )
        except CorruptDocument as error:
            if count == 1:
                raise
            errors[number] = str(error)
            continue
        pictures.extend(_encode(piece, number, "image", "") for piece in _pieces(picture))
    return CutPictures(pictures[:MAX_FIGURES], errors)


def _cut_pdf(data: bytes) -> CutPictures:
    from switchyard.services.pipeline.text import mupdf

    limits = Limits()
    pictures: list[Picture] = []
    errors: dict[int, str] = {}
    with mupdf.opened(data, limits) as (library, document):

        def cut_page(number: int, max_figures: int) -> list[Picture]:
            with mupdf.opened_page(library, document, data, number, limits) as page:
                return _cut_page_figures(library, page, number, max_figures)

        with PageProcess(cut_page, limits) as process:
            for number in range(1, document.page_count + 1):
                try:
                    pictures.extend(process.run(number, MAX_FIGURES - len(pictures)))
                except (CorruptDocument, DocumentTooLarge) as error:
                    errors[number] = str(error)
                if len(pictures) >= MAX_FIGURES:
                    break
    return CutPictures(pictures, errors)


def _cut_page_figures(library: Any, page: Any, number: int, max_figures: int) -> list[Picture]:
    rotation = page.rotation
    page.set_rotation(0)  # on a turned page, the library turns only some of the boxes
    text_blocks = [(block[:4], block[4]) for block in page.get_text("blocks") if block[6] == 0]
    table_boxes = [tuple(table.bbox) for table in _tables(page)]
    drawn_boxes = _drawn_boxes(page, table_boxes)
    page.set_rotation(rotation)

    def as_shown(box: Box) -> Box:
        x0, y0, x1, y1 = library.Rect(box) * page.rotation_matrix
        return x0, y0, x1, y1

    blocks = [(as_shown(box), text) for box, text in text_blocks]
    tables = [as_shown(box) for box in table_boxes]
    boxes = _merge_boxes([*map(as_shown, drawn_boxes), *tables])
    pictures = []
    for box in sorted(boxes, key=lambda box: (box[1], box[0]))[:max_figures]:
        clip = library.Rect(box) & page.rect
        if clip.is_empty or min(clip.width, clip.height) < 1:
            continue  # it lies outside the page: drawing nothing is an error
        zoom = min(_DPI / 72, MAX_SIDE / max(clip.width, clip.height, 1))
        pixels = page.get_pixmap(
            matrix=library.Matrix(zoom, zoom), clip=clip, colorspace=library.csRGB, alpha=False
        )
        is_table = any(_shared_part(box, table) > 0.5 for table in tables)
        pictures.append(
            _encode(
                pixels.pil_image(), number, "table" if is_table else "figure", _caption(box, blocks)
            )
        )
    return pictures


def _tables(page: Any) -> list[Any]:
    if len(page.get_cdrawings()) > _MAX_DRAWINGS:
        return []
    tables = page.find_tables(strategy="lines_strict").tables
    return [table for table in tables if table.row_count > 1 and table.col_count > 1]


def _drawn_boxes(page: Any, tables: Sequence[Box]) -> list[Box]:
    """Return the boxes of pictures, and of groups of lines and areas."""
    images = [tuple(info["bbox"]) for info in page.get_image_info()]
    drawings = page.get_drawings() if len(page.get_cdrawings()) <= _MAX_DRAWINGS else []
    clusters = [tuple(box) for box in page.cluster_drawings(drawings=drawings)] if drawings else []
    area = page.rect.width * page.rect.height or 1.0
    return [
        box
        for box in (*images, *clusters)
        if box[2] - box[0] >= _MIN_SIDE
        and box[3] - box[1] >= _MIN_SIDE
        and (box[2] - box[0]) * (box[3] - box[1]) <= _WHOLE_PAGE_SHARE * area
        and not any(_shared_part(box, table) > 0.8 for table in tables)
    ]


def _merge_boxes(boxes: Sequence[Box]) -> list[Box]:
    """Merge the boxes that overlap."""
    merged: list[Box] = []
    for box in boxes[:500]:
        union = box
        while overlapping := [each for each in merged if _overlap(each, union)]:
            merged = [each for each in merged if each not in overlapping]
            for each in overlapping:
                union = (
                    min(union[0], each[0]),
                    min(union[1], each[1]),
                    max(union[2], each[2]),
                    max(union[3], each[3]),
                )
        merged.append(union)
    return merged


def _overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _shared_part(box: Box, other: Box) -> float:
    """Return the part of the first box that is in the other, from 0 to 1."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return width * height / area if width > 0 and height > 0 and area else 0.0


def _caption(box: Box, blocks: Sequence[tuple[Box, str]]) -> str:
    """Return the nearest text below or above a box that begins as captions do."""
    captions: list[tuple[float, str]] = []
    for (x0, y0, x1, y1), text in blocks:
        if x1 < box[0] or x0 > box[2] or not _CAPTION.match(text):
            continue
        distance = y0 - box[3] if y0 >= box[3] - 5 else box[1] - y1
        if -10 <= distance <= _MAX_CAPTION_DISTANCE:
            captions.append((distance, text))
    return unwrap(clean(min(captions)[1]))[:1_000] if captions else ""


def _encode(
    picture: Image, page: int, kind: Literal["figure", "table", "image"], caption: str
) -> Picture:
    buffer = io.BytesIO()
    picture = picture.convert("RGB")
    picture.save(buffer, "PNG", optimize=False)
    suffix = "png"
    if buffer.tell() > _MAX_PNG_BYTES:
        buffer, suffix = io.BytesIO(), "jpg"
        picture.save(buffer, "JPEG", quality=85)
    return Picture(page, kind, caption, picture.width, picture.height, suffix, buffer.getvalue())
