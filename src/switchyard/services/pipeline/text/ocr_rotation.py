"""Turn pages that were scanned sideways or upside down before they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from switchyard.services.pipeline.text.ocr_pieces import detect

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

MIN_CERTAINTY = 0.5
"""Certainty below which a line counts as a pattern, not as text."""
_MIN_LINES_READ = 3
"""Lines that are read in both directions at first, so that a single one that is upside down decides
nothing."""
_MAX_LINES_READ = 9
"""Lines after which reading in both directions ends, even if neither direction is clearly
better."""
_CLEAR_LEAD = 4.0
"""One direction is clearly better with this lead, in letters weighted by certainty."""
_READ_LENGTH = 7
"""Length of the part of a line that is read, in heights of the line, some fifteen letters: a
shorter one takes the model as much time."""
_MIN_ASPECT_RATIO = 1.5
"""A line tells its direction if it is at least this many times as long as wide. The engine turns
crops that are that much higher than wide to the left."""


@dataclass(frozen=True, slots=True)
class OrientedLines:
    """The lines of a picture that was turned upright; it may still slope a little."""

    picture: Picture
    boxes: Any
    """Corners of each line: upper left, upper right, lower right, lower left."""
    crops: Sequence[Picture]
    turned: int
    """Degrees by which the picture was turned to the left: 0, 90, 180 or 270."""


def find_lines(engine: Any, picture: Picture) -> OrientedLines:
    """Return the lines of a picture that was turned upright, so that they have an order.

    The engine itself leaves the picture as it is, and lets a model choose the direction of each
    line. The model sees only four heights of a line, so it guesses at long ones. Reading a line in
    both directions is surer: upside down, it gives fewer letters, which are less certain.

    Raises RapidOCRError for a picture without lines.
    """
    import numpy as np

    picture, boxes, crops = detect(engine, picture)
    is_sideways = _are_mostly_upright(boxes)
    crops_upright = [
        _turn_left(crop, box) if is_sideways else crop
        for crop, box in zip(crops, boxes, strict=True)
        if _is_upright(box) == is_sideways
    ]
    quarter_turns = is_sideways + (2 if _is_upside_down(engine, crops_upright) else 0)
    if quarter_turns:
        turned_picture = np.ascontiguousarray(np.rot90(picture, quarter_turns))
        picture, boxes, crops = detect(engine, turned_picture)
    return OrientedLines(picture, boxes, crops, 90 * quarter_turns)


def _is_upside_down(engine: Any, crops: Sequence[Picture]) -> bool:
    """Return whether the longest lines are read better when they are turned by 180°."""
    import numpy as np

    lead = 0.0
    longest = sorted(crops, key=lambda crop: -crop.shape[1])[:_MAX_LINES_READ]
    for number, crop in enumerate(longest):
        if number >= _MIN_LINES_READ and abs(lead) >= _CLEAR_LEAD:
            break
        crop_start = crop[:, : _READ_LENGTH * crop.shape[0]]
        lead += _recognition_score(engine, np.ascontiguousarray(np.rot90(crop_start, 2)))
        lead -= _recognition_score(engine, crop_start)
    return lead > 0


def _recognition_score(engine: Any, crop: Picture) -> float:
    """Return the number of letters that are read in a crop, weighted by how far their certainty is
    above MIN_CERTAINTY. A crop without letters gives few certain letters, and many uncertain
    ones."""
    recognised = engine.recognize_txt([crop])
    return float(len(recognised.txts[0]) * (recognised.scores[0] - MIN_CERTAINTY))


def _are_mostly_upright(boxes: Any) -> bool:
    """Return whether most boxes that are longer than wide are upright."""
    upright_length = level_length = 0.0
    for box in boxes:
        long, short = sorted(_edges(box), reverse=True)
        if long <= _MIN_ASPECT_RATIO * short:
            continue
        if _is_upright(box):
            upright_length += long
        else:
            level_length += long
    return upright_length > level_length


def _is_upright(box: Any) -> bool:
    """Return whether a line runs more up or down than across, even if it leans. A box's first edge
    may be its long one or its short one."""
    along, across = _edges(box)
    if max(along, across) <= _MIN_ASPECT_RATIO * min(along, across):
        return False
    end = box[1] if along > across else box[3]
    return bool(abs(end[1] - box[0][1]) > abs(end[0] - box[0][0]))


def _turn_left(crop: Picture, box: Any) -> Picture:
    """Return the crop of an upright line as it is when the page is turned to the left. The engine
    itself turns high crops; others run as their box's first edge does, down or up."""
    import numpy as np

    along, across = _edges(box)
    runs_up = along > across and box[1][1] < box[0][1]
    return np.ascontiguousarray(np.rot90(crop, 2)) if runs_up else crop


def _edges(box: Any) -> tuple[float, float]:
    """Return the lengths of a box's first edge, and of the one across."""
    return length(box[0], box[1]), length(box[0], box[3])


def length(start: Any, end: Any) -> float:
    """Return the length of a box's edge from `start` to `end`."""
    return float(((start[0] - end[0]) ** 2 + (start[1] - end[1]) ** 2) ** 0.5)
