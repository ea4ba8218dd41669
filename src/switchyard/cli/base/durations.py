"""Read and write durations and times as users do."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from switchyard.cli.base.errors import WrongUsage
from switchyard.services.common.durations import DURATION_HELP, parse_seconds

__all__ = ["DURATION_HELP"]


@dataclass(slots=True)
class _AgeClock:
    """The clock by which a command measures ages: this host's, until it opens the ledger."""

    clock: Callable[[], float] = time.time


_age_clock: Final[ContextVar[_AgeClock | None]] = ContextVar("reading", default=None)


def reset_age_clock() -> None:
    """Reset the clock at the start of a command to this host's."""
    _age_clock.set(_AgeClock())


def set_age_clock(clock: Callable[[], float]) -> None:
    """Measure this command's ages by the ledger's clock from now on, as the times are the
    ledger's."""
    age_clock = _age_clock.get()
    if age_clock is not None:
        age_clock.clock = clock


def now() -> float:
    """Return the seconds since the epoch, by the clock of the times that are shown."""
    age_clock = _age_clock.get()
    return time.time() if age_clock is None else age_clock.clock()


def parse_duration(text: str) -> float:
    """Return the seconds of `10s`, `5m`, `1h30m`; a bare number is seconds. Raises WrongUsage."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise WrongUsage(str(error)) from error


def optional_duration(text: str | None) -> float | None:
    """Parse a duration as `parse_duration` does; return None for an option that was not given."""
    return None if text is None else parse_duration(text)


def duration(seconds: float) -> str:
    """Write a length of time as one number and its unit: `0.4s`, `12s`, `5m`, `3h`, `2d`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size or (unit != "m" and seconds >= size and seconds % size == 0):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s" if seconds < 10 and seconds % 1 else f"{seconds:.0f}s"


def age(moment: float | None) -> str:
    """Return how long ago a time of the ledger was, or `in …` for a future one; empty for None."""
    if moment is None:
        return ""
    seconds = now() - moment
    return duration(round(seconds)) if seconds >= 0 else f"in {duration(round(-seconds))}"
