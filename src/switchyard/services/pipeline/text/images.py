"""Measure images that are sent as documents, before anything is decoded, and draw them for OCR."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    UnsupportedDocument,
)
from switchyard.services.pipeline.text.pdf_pages import shrink_factor

if TYPE_CHECKING:
    from PIL.Image import Image

_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP")
_MAX_READABLE_SHADE = 160
"""Shade, of 256, above which print on white paper can't be read."""
_COMPRESSION_TAG = 259
"""The tag of a TIFF that names its compression."""
_UNREADABLE_COMPRESSIONS = {
    9: "JBIG",
    10: "JBIG",
    32766: "NeXT",
    33003: "JPEG 2000",
    33005: "JPEG 2000",
    34661: "JBIG",
    34712: "JPEG 2000",
    34887: "LERC",
    34892: "lossy JPEG of DNG",
    34933: "PNG",
    34934: "JPEG XR",
    50001: "WebP",
    50002: "JPEG XL",
    52546: "JPEG XL",
}
"""Compressions of a TIFF that are in use and that Pillow can't decode."""
_TIFF_STARTS, _BIG_TIFF_MARKS = (b"II", b"MM"), (b"+\0", b"\0+")
"""The first bytes of a TIFF, and the bytes that follow in a TIFF of 64 bits."""


def count_pages(data: bytes, *, max_pixels: int, max_pages: int) -> int:
    """Count the pages of an image without decoding them; only a TIFF can have several.

    Raises CorruptDocument, UnsupportedDocument, and DocumentTooLarge for more than `max_pages`
    pages, or more than `max_pixels` pixels on a page.
    """
    with _open_image(data) as image:
        # A TIFF does not say how many pages it has: each page only leads to the next.
        for number in range(max_pages):
            _check_size(image, number + 1, max_pixels)
            if image.format != "TIFF" or not _go_to_page(image, number + 1):
                return number + 1
    raise DocumentTooLarge(f"the image has more than the {max_pages:,} pages allowed")


def draw(data: bytes, number: int, *, pixels: int, side: int, area: int = 0) -> Image:
    """Draw a page of an image, from 1, upright and in colour: at most `side` pixels long and wide,
    or at most `area` pixels in all.

    Raises CorruptDocument, UnsupportedDocument, DocumentTooLarge, MemoryError.
    """
    from PIL import ImageOps

    with _open_image(data) as image:
        if number > 1 and not _go_to_page(image, number - 1):
            raise CorruptDocument(f"the image has no page {number}")
        _check_size(image, number, pixels)
        scale = shrink_factor(*image.size, side, area)
        size = ceil(image.width * scale), ceil(image.height * scale)
        image.draft("RGB", size)  # a JPEG is decoded at a fraction of its size
        # Not by `thumbnail` alone, which does not scale palettes and 16 bits smoothly.
        picture: Image = _in_colour(image)
        if scale < 1:
            picture.thumbnail(size)
        return ImageOps.exif_transpose(picture)


def _in_colour(image: Image) -> Image:
    from PIL import Image as Images

    if image.mode.startswith("I;16"):
        image = image.point(lambda value: value / 256).convert("L")
    elif image.mode in ("I", "F"):
        image = _in_shades(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        alpha = image.convert("RGBA")
        visible = alpha.getchannel("A")
        paper = Images.new("RGB", image.size, "black" if _is_light(alpha, visible) else "white")
        paper.paste(alpha, mask=visible)
        return paper
    return image.convert("RGB")


def _in_shades(image: Image) -> Image:
    """Convert a picture whose pixels are plain numbers to shades of grey. The shades span the range
    of its numbers, as the file names none."""
    low, high = image.getextrema()
    if not isinstance(low, int | float) or not isinstance(high, int | float) or not high > low:
        return image.convert("L")
    scale, offset = 255 / (high - low), -low * 255 / (high - low)
    return image.point(lambda value: value * scale + offset).convert("L")


def _is_light(image: Image, visible: Image) -> bool:
    """Return whether everything visible would be unreadable on white paper."""
    from PIL import ImageStat

    visible_mask = visible.point([0] * 128 + [255] * 128)
    if visible_mask.getbbox() is None:
        return False
    ((darkest, _),) = ImageStat.Stat(image.convert("L"), visible_mask).extrema
    return bool(darkest > _MAX_READABLE_SHADE)


def _go_to_page(image: Image, number: int) -> bool:
    """Go to the page of that number, from 0. Return whether there is one."""
    try:
        image.seek(number)
    except EOFError:
        return False
    return True


def _check_size(image: Image, number: int, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise DocumentTooLarge(
            f"page {number} of the image has {width} × {height} pixels, {max_pixels:,} are allowed"
        )


@contextmanager
def _open_image(data: bytes) -> Iterator[Image]:
    from PIL import Image as Images
    from PIL import UnidentifiedImageError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes within our own limit
        try:
            with Images.open(io.BytesIO(data), formats=_FORMATS) as image:
                yield image
        except Images.DecompressionBombError as error:
            max_pixels = 2 * (Images.MAX_IMAGE_PIXELS or 0)  # Pillow's own limit
            reason = f"the image has more than the {max_pixels:,} pixels allowed"
            raise DocumentTooLarge(reason) from error
        except (CorruptDocument, DocumentTooLarge, MemoryError):
            raise
        # Pillow's readers raise errors of any class for damaged files.
        except Exception as error:
            if (method := _undecodable_compression(data)) is not None:
                raise UnsupportedDocument(
                    f"the TIFF is compressed with {method}, which can't be read here: save it "
                    "with LZW or without compression, or as PNG or PDF, and send that"
                ) from error
            if isinstance(error, UnidentifiedImageError):
                raise CorruptDocument("the image is corrupt: its header can't be read") from error
            reason = str(error).strip() or type(error).__name__
            raise CorruptDocument(f"the image is corrupt: {reason[:200]}") from error


def _undecodable_compression(data: bytes) -> str | None:
    """Return the compression of a TIFF that Pillow can't decode; None where it can."""
    from PIL import TiffImagePlugin as Tiff

    if not data.startswith(_TIFF_STARTS):
        return None
    visited: set[int] = set()
    try:
        directory = Tiff.ImageFileDirectory_v2(data[: 16 if data[2:4] in _BIG_TIFF_MARKS else 8])
        while directory.next and directory.next not in visited:
            visited.add(directory.next)
            file = io.BytesIO(data)
            file.seek(directory.next)
            directory.load(file)
            method = directory.get(_COMPRESSION_TAG, 1)
            if method in _UNREADABLE_COMPRESSIONS or method not in Tiff.COMPRESSION_INFO:
                return _UNREADABLE_COMPRESSIONS.get(method, f"method {method}")
    except Exception:  # the file is also damaged, as the first error says
        return None
    return None
