"""Write numbers and names for people, and foreign text so that it can be stored anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED, MAX_NEAREST = 15, 5
"""Known names up to which all are listed for an unknown one, and how many of more."""


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return `1 job` or `1,200 jobs`; `plural`: the plural, where it is not the noun with an
    `s`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def rate_in_words(rate: float) -> str:
    """Write a number a second: `5 a second`, or of a slow rate `2 a minute` or `36 an hour`."""
    for seconds, unit in ((1, "a second"), (60, "a minute"), (3600, "an hour")):
        if rate * seconds >= 1 or unit == "an hour":
            break
    return f"{rate * seconds:,.3g} {unit}" if rate * seconds < 1000 else f"{rate:,.0f} {unit}"


def size_in_words(count: float) -> str:
    """Write bytes with a unit: `0 B`, `12.3 KiB`, `4.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def writable(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Cut a text from anywhere to `limit` characters, in a form that can be written everywhere.

    NUL, which PostgreSQL refuses, and halves of a surrogate pair, which UTF-8 can't say, are
    written as `\\x00` and `\\ud800`. The start is kept, or with `keep_end` the end.
    """
    part = slice(-limit, None) if keep_end else slice(limit)
    # Not `text[…]`: a class derived from str may override it. The result is a plain str.
    text = str.__getitem__(text, part)
    if "\x00" in text:
        text = text.replace("\x00", "\\x00")
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text[part]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the text of a suggestion for an unknown name: the nearest known one, then all; of more
    than MAX_LISTED the nearest ones, and how many there are."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    names_text = f"known are: {', '.join(names) or 'none'}"
    if len(names) > MAX_LISTED:
        listed = get_close_matches(name, names, n=MAX_NEAREST, cutoff=0.0)
        names_text = f"known are: {', '.join(listed)} and {len(names) - len(listed)} others"
    return f"did you mean {near[0]!r}? {names_text}" if near else names_text
