"""Find the lines of pictures that are larger than what the models look at: where print would become
too small to be read, its lines are looked for piece by piece, in the unreduced picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]
    Box = tuple[float, float, float, float]

PIECE_SIZE = 1_600
"""Longest side of a piece, in pixels."""
_OVERLAP = 240
"""Pixels that pieces share, so that a line is whole in one of them."""
_MIN_LINE_HEIGHT = 16
"""Height of a line's box in pixels, the print with some space, below which the line is read
badly."""
_SMALL_LINES_ALLOWED = 10
"""One line in this many may be smaller than _MIN_LINE_HEIGHT."""
_TRUSTED_SCALE = 0.5
"""Smallest scale at which a picture in which no line was found has none; a picture that was made
smaller is searched piece by piece."""
_SAME_LINE_OVERLAP = 0.5
"""Two boxes are one line if they share more than this part of the smaller one's area."""
_CONTINUES_OVERLAP = 0.6
"""Two boxes side by side are one line if they share more than this part of the smaller height (of
upright lines: of the smaller width)."""


def detect(engine: Any, picture: Picture) -> tuple[Picture, Any, Sequence[Picture]]:
    """Return the picture in the size in which its lines are read, their boxes, and their crops.

    Raises RapidOCRError for a picture without lines.
    """
    from rapidocr.main import RapidOCRError

    reduced, record = engine.preprocess_img(picture)
    scale = max(reduced.shape[:2]) / max(picture.shape[:2])
    try:
        crops, detected = engine.detect_and_crop(reduced, record)
        boxes = list(detected.boxes)
    except RapidOCRError:
        if scale >= _TRUSTED_SCALE:
            raise
        boxes = []
    if scale >= 1 or (boxes and not _are_small(boxes)):
        return reduced, boxes, crops
    boxes = _detect_in_pieces(engine, picture, [box / scale for box in boxes])
    if not boxes:
        raise RapidOCRError("no piece has a line")
    return picture, boxes, engine.crop_text_regions(picture, boxes)


def _are_small(boxes: Sequence[Any]) -> bool:
    heights = sorted(min(x1 - x0, y1 - y0) for x0, y0, x1, y1 in map(_bounding_box, boxes))
    return heights[len(heights) // _SMALL_LINES_ALLOWED] < _MIN_LINE_HEIGHT


def _detect_in_pieces(engine: Any, picture: Picture, coarse_boxes: Sequence[Any]) -> list[Any]:
    """Return the boxes of all lines. `coarse_boxes` are the boxes that were found in the whole
    picture: they are used for lines that are higher than the overlap, which no piece may have
    whole."""
    from rapidocr.main import RapidOCRError

    height, width = picture.shape[:2]
    boxes: list[Any] = []
    for box in coarse_boxes:
        x0, y0, x1, y1 = _bounding_box(box)
        if min(x1 - x0, y1 - y0) > _OVERLAP:
            boxes.append(box)
    for top in _starts(height):
        for left in _starts(width):
            piece = picture[top : top + PIECE_SIZE, left : left + PIECE_SIZE]
            reduced, record = engine.preprocess_img(piece)
            scale = max(reduced.shape[:2]) / max(piece.shape[:2])
            try:
                _, detected = engine.detect_and_crop(reduced, record)
            except RapidOCRError:  # raised for a piece without text
                continue
            padding = record.get("padding_1", {}).get("top", 0)
            for box in detected.boxes:
                box_in_picture = (box - (0, padding)) / scale + (left, top)
                boxes.append(box_in_picture.astype("float32"))
    return _join_boxes(boxes)


def _starts(size: int) -> Iterator[int]:
    """Return the pixels at which pieces of equal length begin that together cover `size`."""
    count = 1 + max(0, -(-(size - PIECE_SIZE) // (PIECE_SIZE - _OVERLAP)))
    for number in range(count):
        yield round(number * (size - PIECE_SIZE) / (count - 1)) if count > 1 else 0


def _join_boxes(boxes: Sequence[Any]) -> list[Any]:
    """Return each line once: boxes of one line in two pieces, or of a line that continues in the
    next piece, are joined."""
    import numpy as np

    joined_boxes: list[Any] = []
    for box in sorted(boxes, key=lambda box: -_area(_bounding_box(box))):
        x0, y0, x1, y1 = _bounding_box(box)
        is_joined = False
        for index, other in enumerate(joined_boxes):
            a0, b0, a1, b1 = _bounding_box(other)
            shared_width, shared_height = min(x1, a1) - max(x0, a0), min(y1, b1) - max(y0, b0)
            if shared_width <= 0 or shared_height <= 0:
                continue
            if shared_width * shared_height > _SAME_LINE_OVERLAP * _area((x0, y0, x1, y1)):
                is_joined = True
                break
            both_horizontal = x1 - x0 > y1 - y0 and a1 - a0 > b1 - b0
            both_upright = x1 - x0 < y1 - y0 and a1 - a0 < b1 - b0
            is_continued = (
                both_horizontal and shared_height > _CONTINUES_OVERLAP * min(y1 - y0, b1 - b0)
            ) or (both_upright and shared_width > _CONTINUES_OVERLAP * min(x1 - x0, a1 - a0))
            if is_continued:
                left, upper, right, lower = min(x0, a0), min(y0, b0), max(x1, a1), max(y1, b1)
                corners = [[left, upper], [right, upper], [right, lower], [left, lower]]
                joined_boxes[index] = np.array(corners, np.float32)
                is_joined = True
                break
        if not is_joined:
            joined_boxes.append(box)
    return joined_boxes


def _bounding_box(box: Any) -> Box:
    """Return the upright rectangle around a box: left, top, right, bottom."""
    xs, ys = box[:, 0], box[:, 1]
    return float(xs.min()), float(ys.min()), float(xs.max()), float(ys.max())


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
