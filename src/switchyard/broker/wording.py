"""Numbers and names of things, as people say them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 job`, `1,200 jobs`; `plural` where it is not the noun with an `s`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def choices(name: str, known: Iterable[str]) -> str:
    """What can be named in the place of `name`: the nearest one first, then all."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    listed = f"known are: {', '.join(names) or 'none'}"
    return f"did you mean {near[0]!r}? {listed}" if near else listed
