"""What a payload names."""

from __future__ import annotations

from collections.abc import Iterator


def texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, however deep; keys of objects are none."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
