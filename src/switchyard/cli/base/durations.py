"""Read and write durations and times as users do."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from switchyard.cli.base.errors import WrongUsage
from switchyard.services.common.durations import DURATION_HELP, duration_text, parse_seconds

__all__ = ["DURATION_HELP", "duration_text"]


@dataclass(slots=True)
class _AgeClock:
    """The clock by which a command measures ages: this host's, until it opens the ledger."""

    clock: Callable[[], float] = time.time


_age_clock: Final[ContextVar[_AgeClock | None]] = ContextVar("age_clock", default=None)


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


def parse_optional_duration(text: str | None) -> float | None:
    """Parse a duration as `parse_duration` does; return None for an option that was not given."""
    return None if text is None else parse_duration(text)


def age(moment: float | None) -> str:
    """Return how long ago a time of the ledger was, in its largest unit; `in …` for a future time,
    empty for None."""
    if moment is None:
        return ""
    seconds = now() - moment
    text = duration_text(round(abs(seconds)), units=1)
    return text if seconds >= 0 else f"in {text}"
