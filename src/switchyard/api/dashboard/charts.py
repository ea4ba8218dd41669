"""Small charts as SVG, drawn on the server: the geometry of bars and lines, without styles or
texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

WIDTH, HEIGHT = 240, 44
"""Size in the units of the drawing: the page scales it to the width that it has."""

MINUTES = 60
"""How much the charts of minutes show."""


class Minute(Protocol):
    """What is known of a minute."""

    @property
    def at(self) -> float:
        """When it began, in seconds since the epoch."""
        ...


M = TypeVar("M", bound=Minute)


def first_minute(now: float) -> float:
    """Return when the first of the last MINUTES minutes began."""
    return now - now % 60 - 60 * (MINUTES - 1)


def minute_series(
    minutes: Iterable[M], first: float, value: Callable[[M], float | None]
) -> list[float | None]:
    """Return the value of each of MINUTES minutes from the first; None where it is not known."""
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
    """A row of values, of which some may be unknown, drawn from the left to the right."""

    def __init__(
        self,
        values: Sequence[float | None],
        *,
        top: float | None = None,
        width: int = WIDTH,
        height: int = HEIGHT,
    ) -> None:
        """`top` is the value at the upper edge; the largest one where it is not given."""
        self.values = values
        self.width, self.height = width, height
        self.top = top or max((each for each in values if each is not None), default=0.0) or 1.0
        self.step = width / max(1, len(values))

    def y(self, value: float) -> float:
        """Return how far from the upper edge a value is."""
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
                # A value alone is a dot: round ends make one of a line without length.
                parts.append(f"{'L' if is_drawing else 'M'}{x} {self.y(value)}")
                parts.append("" if is_drawing else "h0")
            is_drawing = value is not None
        return "".join(parts)
