"""How often a value was how large: a histogram that costs a fraction of a microsecond to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from functools import partial
from itertools import accumulate
from typing import Final

NOTED: Final = 500
"""Values that are only noted, until there are so many or somebody reads."""


class Distribution:
    """Values by the smallest of the bounds that they do not exceed.

    prometheus_client's own takes locks for each value, one of them to find its labels, which costs
    a worker of many short jobs as much as a tenth of its time. This one belongs to one thread, the
    event loop's, in which it is also read. A value is noted and sorted in later, with many others:
    amid the work of a job, whose code and data fill the processor's caches, a sum costs several
    times as much as among its like.
    """

    __slots__ = ("_bounds", "_counts", "_new", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` in ascending order; what is larger than the last counts as well."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._new: list[float] = []

    def add(self, value: float) -> None:
        self._new.append(value)
        if len(self._new) >= NOTED:
            self._sort_in()

    def add_all(self, other: Distribution) -> None:
        """Add the values of another one, of the same bounds."""
        other._sort_in()
        self._sum += other._sum
        self._counts = [
            mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)
        ]

    def _sort_in(self) -> None:
        self._sum += sum(self._new)
        for place, number in Counter(map(partial(bisect_left, self._bounds), self._new)).items():
            self._counts[place] += number
        self._new.clear()

    def buckets(self) -> list[tuple[str, float]]:
        """How many values do not exceed each bound, which is text; the last bound is `+Inf`."""
        self._sort_in()
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return [
            (name, float(count))
            for name, count in zip(names, accumulate(self._counts), strict=True)
        ]

    def sum(self) -> float:
        """Of all values."""
        self._sort_in()
        return self._sum
