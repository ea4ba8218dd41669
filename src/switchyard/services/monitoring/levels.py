"""How full a lane can be, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Pressure(StrEnum):
    """How full: a client that hears `slow` should publish less, one that hears `full` wait."""

    OK = "ok"
    SLOW = "slow"
    FULL = "full"


_ORDER = tuple(Pressure)


def fullest(pressures: Iterable[Pressure]) -> Pressure:
    """The fullest of them counts; OK where there is none."""
    return max(pressures, key=_ORDER.index, default=Pressure.OK)


@dataclass(frozen=True, slots=True)
class Marks:
    """At how many waiting jobs a queue is what."""

    ok_below: float
    """What was slow or full stays slow until fewer wait."""
    slow_at: float
    full_at: float

    def pressure(self, waiting: int, before: Pressure) -> Pressure:
        """How full a queue is in which so many wait; `before` is what it was just now."""
        if waiting >= self.full_at:
            return Pressure.FULL
        if waiting >= self.slow_at:
            return Pressure.SLOW
        stays = before is not Pressure.OK and waiting >= self.ok_below
        return Pressure.SLOW if stays else Pressure.OK
