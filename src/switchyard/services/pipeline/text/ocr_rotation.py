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
"""Certainty below which a line is taken for a pattern, not for text."""
_MIN_READ = 3
"""Lines that are read both ways at least, so that one that stands on its head decides nothing."""
_MAX_READ = 9
"""And at most, as long as none of the ways is clearly the better."""
_CLEAR = 4.0
"""Lead of one way over the other, in letters weighted by certainty, from which on it is clear."""
_PART = 7
"""Heights of a line of which the beginning is read, some fifteen letters: a shorter one takes the
model as much time."""
_LONGER = 1.5
"""How many times as long as wide a line is at least that tells which way it runs. The engine turns
crops that are that much higher than wide to the left."""


@dataclass(frozen=True, slots=True)
class OrientedLines:
    """The lines of a picture that stands as it is read, but for its skew."""

    picture: Picture
    boxes: Any
    """Corners of each line: above to the left, above to the right, and around."""
    crops: Sequence[Picture]
    turned: int
    """Degrees by which the picture was turned to the left: 0, 90, 180 or 270."""


def find_lines(engine: Any, picture: Picture) -> OrientedLines:
    """Return the lines of a picture, turned so that there is an order to read them in.

    The engine's own way leaves lines where they are, and asks a model for the direction of each.
    That one sees a line as wide as four of its heights, so it guesses at long ones. Reading tells:
    what is upside down makes fewer letters, and less certain ones.

    Raises RapidOCRError for a picture without lines.
    """
    import numpy as np

    picture, boxes, crops = detect(engine, picture)
    sideways = _run_up_or_down(boxes)
    running = [
        _turned_left(crop, box) if sideways else crop
        for crop, box in zip(crops, boxes, strict=True)
        if _stands(box) == sideways
    ]
    quarters = sideways + (2 if _is_upside_down(engine, running) else 0)
    if quarters:
        turned = np.ascontiguousarray(np.rot90(picture, quarters))
        picture, boxes, crops = detect(engine, turned)
    return OrientedLines(picture, boxes, crops, 90 * quarters)


def _is_upside_down(engine: Any, crops: Sequence[Picture]) -> bool:
    """Return whether lines are read better when they are turned by 180°: the longest ones tell."""
    import numpy as np

    lead = 0.0
    longest = sorted(crops, key=lambda crop: -crop.shape[1])[:_MAX_READ]
    for number, crop in enumerate(longest):
        if number >= _MIN_READ and abs(lead) >= _CLEAR:
            break
        part = crop[:, : _PART * crop.shape[0]]
        lead += _recognition_score(engine, np.ascontiguousarray(np.rot90(part, 2)))
        lead -= _recognition_score(engine, part)
    return lead > 0


def _recognition_score(engine: Any, crop: Picture) -> float:
    """Return how many letters were read there, weighted by how far their certainty is above
    MIN_CERTAINTY. A crop without letters gives few that are certain, and many that are not."""
    read = engine.recognize_txt([crop])
    return float(len(read.txts[0]) * (read.scores[0] - MIN_CERTAINTY))


def _run_up_or_down(boxes: Any) -> bool:
    """Return whether most boxes that are longer than wide stand on end."""
    high = level = 0.0
    for box in boxes:
        long, short = sorted(_edges(box), reverse=True)
        if long <= _LONGER * short:
            continue
        if _stands(box):
            high += long
        else:
            level += long
    return high > level


def _stands(box: Any) -> bool:
    """Return whether a line runs more up or down than across, even if it leans. A box's first edge
    may be its long one or its short one."""
    along, across = _edges(box)
    if max(along, across) <= _LONGER * min(along, across):
        return False
    end = box[1] if along > across else box[3]
    return bool(abs(end[1] - box[0][1]) > abs(end[0] - box[0][0]))


def _turned_left(crop: Picture, box: Any) -> Picture:
    """Return the crop of a line that stands, as it is when the page is turned to the left. The
    engine turns crops that are high itself; others run as their box's first edge does, down or
    up."""
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
