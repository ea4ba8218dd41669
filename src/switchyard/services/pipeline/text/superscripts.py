"""Write raised numbers of a page (exponents, footnotes, citations) as superscripts: ¹², ³,⁵–⁷, ⁻³.

Extractors recognise raised numbers by size and baseline. In the text these are superscripts of
Unicode, so that `10⁵` is not read as 105, and `day.¹²` does not lose its marker.
"""

from __future__ import annotations

import re

SIGNS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
MAX_RAISED_SIZE = 0.85
"""Largest size of a raised number, as a part of its line's size."""
MIN_RAISED_HEIGHT = 0.15
"""Smallest height of a raised number's baseline above the line's baseline, in sizes of the line."""
_RAISED = str.maketrans("0123456789-\u2212\u2010", SIGNS + "⁻⁻⁻")
_LOWERED = str.maketrans(SIGNS + "⁻", "0123456789-")
_NUMBERS = re.compile(r"(?=.*\d)[\d\s,;–\u2212\u2010-]{1,60}", re.DOTALL)


def raised(text: str) -> str:
    """Return a raised span of text, with its digits as superscripts if it has only numbers."""
    return text.translate(_RAISED) if _NUMBERS.fullmatch(text) else text


def lowered(text: str) -> str:
    """Return the text with superscripts replaced by digits."""
    return text.translate(_LOWERED)


def is_raised(size: float, baseline: float, line_size: float, line_baseline: float) -> bool:
    """Return whether letters are raised in a line, by their size and baseline (from the top)."""
    return (
        size <= MAX_RAISED_SIZE * line_size
        and line_baseline - baseline >= MIN_RAISED_HEIGHT * line_size
    )
