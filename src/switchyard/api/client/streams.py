"""The mark of methods that follow a stream of events, and so are no call with one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def streams(operation: str) -> Callable[[T], T]:
    """Name the operation that a method of both clients follows."""

    def mark(method: T) -> T:
        method.operations = (operation,)  # type: ignore[attr-defined]
        return method

    return mark
