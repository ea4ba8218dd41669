"""Put lines of Arabic, Hebrew and other scripts from right to left into the order of reading.

A PDF places glyphs, and does not say in which order they are read. Here a line's letters are put
into that order by their places. This reverses the Unicode bidirectional algorithm (UAX #9);
numbers and words of other scripts keep their order from left to right.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff]")
_STRONG_RTL = frozenset(("R", "AL"))
_NUMBERS = frozenset(("EN", "AN"))
_WITHIN_NUMBERS = frozenset(("ES", "CS", "ET"))
_MIN_BLANK_WIDTH = 0.2
"""Two letters at least this far apart (in heights of a letter) have a blank between them, although
the file has none."""
_FINAL_LETTERS = frozenset("\u0629\u0649\u05da\u05dd\u05df\u05e3\u05e5")
"""Letters that stand only at the end of words: teh marbuta and alef maksura, and Hebrew's five."""
_ARTICLE = "\u0627\u0644"
_MIRRORED = str.maketrans("()[]{}<>«»", ")(][}{><»«")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("«", "»"))


@dataclass(frozen=True, slots=True)
class Glyph:
    """The text of a glyph and its left and right edge. A ligature has several letters, in the order
    of reading."""

    text: str
    x0: float
    x1: float


def text_in_order(glyphs: Sequence[Glyph], size: float) -> str:
    """Return the text of a line in the order in which it is read, from its glyphs in any order."""
    clusters = _clusters(glyphs, size)
    if not clusters:
        return ""
    read_clusters = _read_from_left if _runs_right(clusters) else _read_from_right
    text = read_clusters(clusters)
    if _disorder(text) > 0:  # the file has the letters of the line in reverse
        reversed_text = read_clusters([each[::-1] for each in reversed(clusters)])
        if _disorder(reversed_text) < _disorder(text):
            return reversed_text
    return text


def text_from_left(glyphs: Sequence[Glyph], size: float) -> str:
    """Return the text of a line without letters from right to left, from its glyphs in any
    order."""
    return "".join(_clusters(glyphs, size))


def _runs_right(clusters: Sequence[str]) -> bool:
    """Return whether a line runs from left to right, although some of its words do not."""
    kinds = [_kind(char) for text in clusters for char in text]
    strong = [kind for kind in kinds if kind in "LR"]
    if any({"L", "R"} <= {_kind(char) for char in text} for text in clusters if len(text) > 1):
        return True  # a glyph with words of both directions
    if strong[:1] == strong[-1:]:
        return strong[:1] == ["L"]
    return strong.count("L") >= strong.count("R")


def _read_from_left(clusters: Sequence[str]) -> str:
    """Return the text of a line from left to right, with its words from right to left reversed."""
    kinds = [_kind(text) for text in clusters]
    parts: list[str] = []
    start = 0
    while start < len(kinds):
        last_rtl = end = start
        while kinds[start] == "R" and end < len(kinds) and kinds[end] != "L":
            last_rtl = end if kinds[end] == "R" else last_rtl
            end += 1
        parts.append(
            _read_from_right(clusters[start : last_rtl + 1])
            if kinds[start] == "R"
            else clusters[start]
        )
        start = last_rtl + 1
    return " ".join("".join(parts).split())


def _clusters(glyphs: Sequence[Glyph], size: float) -> list[str]:
    """Return the glyphs from left to right, with marks behind their letters, and blanks."""
    clusters: list[Glyph] = []
    marks: list[Glyph] = []
    for glyph in glyphs:
        is_mark = all(map(unicodedata.combining, glyph.text))
        (marks if is_mark else clusters).append(glyph)
    clusters.sort(key=lambda glyph: glyph.x0 + glyph.x1)
    texts = [glyph.text for glyph in clusters]
    centres = [(glyph.x0 + glyph.x1) / 2 for glyph in clusters]
    for mark in marks:
        centre = (mark.x0 + mark.x1) / 2
        index = bisect(centres, centre)
        near_indices = [each for each in range(index - 2, index + 2) if 0 <= each < len(clusters)]
        if near_indices:
            nearest = min(
                near_indices,
                key=lambda index: (texts[index].isspace(), abs(centres[index] - centre)),
            )
            texts[nearest] += mark.text
    texts_and_blanks: list[str] = []
    for index, text in enumerate(texts):
        if index and clusters[index].x0 - clusters[index - 1].x1 > _MIN_BLANK_WIDTH * size:
            texts_and_blanks.append(" ")
        texts_and_blanks.append(text)
    return texts_and_blanks


def _read_from_right(clusters: Sequence[str]) -> str:
    """Return the text of a line from right to left, from its clusters from left to right."""
    kinds = _resolve_directions(clusters)
    parts: list[str] = []
    run: list[str] = []
    for text, kind in zip(reversed(clusters), reversed(kinds), strict=True):
        if kind == "L":
            run.append(text)
            continue
        parts += reversed(run)
        run.clear()
        parts.append(text)
    parts += reversed(run)
    joined = " ".join("".join(parts).split())
    mirrored = joined.translate(_MIRRORED)
    return mirrored if _count_unpaired(mirrored) < _count_unpaired(joined) else joined


def _kind(text: str) -> str:
    kind = unicodedata.bidirectional(text[0])
    return "R" if kind in _STRONG_RTL else kind


def _resolve_directions(clusters: Sequence[str]) -> list[str]:
    """Return L for clusters that keep their order from left to right: words of other scripts,
    numbers, and signs between two of them; R for all others."""
    kinds = [_kind(text) for text in clusters]
    resolved = list(kinds)
    for index, kind in enumerate(kinds):
        previous = kinds[index - 1] if index else ""
        next_kind = kinds[index + 1] if index + 1 < len(kinds) else ""
        is_within_number = (
            kind in _WITHIN_NUMBERS and previous in _NUMBERS and next_kind in _NUMBERS
        )
        if is_within_number or (kind == "ET" and (previous in _NUMBERS or next_kind in _NUMBERS)):
            resolved[index] = "EN"
    index = 0
    while index < len(resolved):
        if resolved[index] != "L":
            index += 1
            continue
        end = _end_of_run(clusters, resolved, index)
        resolved[index:end] = ["L"] * (end - index)
        index = end
    return ["L" if kind == "L" or kind in _NUMBERS else "R" for kind in resolved]


def _end_of_run(clusters: Sequence[str], kinds: Sequence[str], start: int) -> int:
    """Return where a run of words of another script ends that begins at `start`. The run includes
    blanks and signs between its words, numbers behind them, and brackets around them."""
    end = last_index = start
    brackets = open_brackets = 0
    while end < len(kinds) and kinds[end] != "R":
        if clusters[end] in _OPENING:
            brackets += 1
        elif clusters[end] in _CLOSING:
            brackets -= 1
            if brackets >= 0 and last_index >= start and brackets < open_brackets:
                last_index, open_brackets = end, brackets
        if kinds[end] == "L" or (kinds[end] in _NUMBERS and brackets == open_brackets):
            last_index, open_brackets = end, max(brackets, 0)
        end += 1
    return last_index + 1


def _disorder(text: str) -> int:
    """Return the number of words that begin with what belongs at a word's end, minus the number of
    words that end with it."""
    count = 0
    for word in re.findall(r"[^\W\d_]+", text):
        if len(word) > 1 and RIGHT_TO_LEFT.match(word):
            count += (word[0] in _FINAL_LETTERS) - (word[-1] in _FINAL_LETTERS)
            count += word.endswith(_ARTICLE[::-1]) - word.startswith(_ARTICLE)
    return count


def _count_unpaired(text: str) -> int:
    """Return the number of closing brackets without an opening one."""
    count = 0
    for opening, closing in _PAIRS:
        depth = 0
        for char in text:
            if char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth < 0:
                    count += 1
                    depth = 0
    return count
