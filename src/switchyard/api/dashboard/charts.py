"""Small charts as SVG, drawn on the server: the geometry of bars and lines, without styles or
texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

WIDTH, HEIGHT = 240, 44
"""Size in the units of the drawing: the page scales it to the width that it has."""

MINUTES = 60
"""Minutes that a chart shows."""


class Minute(Protocol):
    """A minute whose values a chart shows."""

    @property
    def at(self) -> float:
        """End of the minute, in seconds since the epoch."""
        ...


M = TypeVar("M", bound=Minute)


def first_minute(now: float) -> float:
    """Return the end of the first of the last MINUTES minutes that have ended by `now`."""
    return now - now % 60 - 60 * (MINUTES - 1)


def minute_series(
    minutes: Iterable[M], first: float, value: Callable[[M], float | None]
) -> list[float | None]:
    """Return the values of MINUTES minutes from `first` on; None for unknown ones."""
    found: list[float | None] = [None] * MINUTES
    for each in minutes:
        index = round((each.at - first) / 60)
        if 0 <= index < MINUTES:
            found[index] = value(each)
    return found


@dataclass(frozen=True, slots=True)
class Bar:
    """The rectangle of one value."""

    x: float
    y: float
    width: float
    height: float


class Chart:
    """A chart of values in a row, from left to right; unknown values are None."""

    def __init__(
        self, values: Sequence[float | None], *, top: float | None = None, height: int = HEIGHT
    ) -> None:
        """`top` is the value at the upper edge; the largest one where it is not given."""
        self.values = values
        self.width, self.height = WIDTH, height
        self.top = top or max((each for each in values if each is not None), default=0.0) or 1.0
        self.step = WIDTH / max(1, len(values))

    def y(self, value: float) -> float:
        """Return the distance of a value from the upper edge, in the units of the drawing."""
        room = self.height - 2
        return round(1 + room - room * min(1.0, max(0.0, value / self.top)), 1)

    @property
    def bars(self) -> list[Bar]:
        """Return a bar for each value that is known and not zero."""
        bars = []
        for index, value in enumerate(self.values):
            if value:
                y = self.y(value)
                x = round(index * self.step, 1)
                bars.append(
                    Bar(x, y, round(max(0.8, self.step - 0.8), 1), round(self.height - y, 1))
                )
        return bars

    @property
    def line(self) -> str:
        """Return the path through all values that are known, with gaps where they are not."""
        parts: list[str] = []
        is_drawing = False
        for index, value in enumerate(self.values):
            if value is not None:
                x = round((index + 0.5) * self.step, 1)
                # A single value is a line without length, which round line ends draw as a dot.
                parts.append(f"{'L' if is_drawing else 'M'}{x} {self.y(value)}")
                parts.append("" if is_drawing else "h0")
            is_drawing = value is not None
        return "".join(parts)
