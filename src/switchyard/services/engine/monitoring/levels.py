"""How full a lane can be, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
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
