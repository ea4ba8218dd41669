"""Tell when an entry is due, by a cron expression in a time zone. The functions are pure.

Changes of summer time are treated as by Debian's cron. An entry at a fixed time (neither minute nor
hour begins with `*`) is due once a day: a time that is skipped in spring is due at the end of the
gap, and one that comes twice in autumn at its first occurrence. Other entries (`*/15 * * * *`) are
due in both hours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from switchyard.services.common.errors import InvalidInput

CATCH_UP_WINDOW = 60.0
"""Seconds for which every due time that has passed is fired: longer than a scheduler takes to
replace one that has died."""
MAX_COUNTED = 5_000
"""Due times that are examined one by one after a long time without a scheduler."""
MAX_TRIED = 1_000
"""Times of a cron expression that are tried until one is later than asked for. In autumn an hour
comes twice: 60 times of an expression that is due each minute."""


class InvalidSchedule(InvalidInput):
    """An invalid entry; the text says what is wrong."""

    def __init__(self, text: str, *, at: str | None = None) -> None:
        super().__init__(text)
        self.at = at
        """The field that is wrong; None where it is not one alone."""


@dataclass(frozen=True, slots=True)
class DueTimes:
    """Decision on due times that have passed."""

    fired: tuple[float, ...]
    missed: tuple[float, int] | None
    """The first one that is too late to be fired, and how many there are, at least."""
    next_at: float
    """The first due time after now."""


@dataclass(frozen=True, slots=True)
class CronRule:
    """A cron expression in a time zone. Moments are seconds since the epoch."""

    cron: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, cron: str, timezone: str) -> CronRule:
        """Check the expression and the name of the time zone. Raises InvalidSchedule."""
        try:
            zone = ZoneInfo(timezone)
        except (LookupError, ValueError, OSError):
            raise InvalidSchedule(
                f"there is no time zone {timezone!r}: use a name such as Europe/Berlin or UTC",
                at="timezone",
            ) from None
        rule = cls(cron, zone)
        rule.after(0.0)
        return rule

    def after(self, moment: float) -> float:
        """Return the first due time after that moment. Raises InvalidSchedule where the expression
        is not valid or never due."""
        start = datetime.fromtimestamp(moment, UTC)
        # CronSim recognises UTC by the object `UTC`.
        local = start if self.zone.key == "UTC" else start.astimezone(self.zone)
        try:
            times = islice(CronSim(self.cron, local), MAX_TRIED)
            due = next((at for at in (each.timestamp() for each in times) if at > moment), None)
        except (CronSimError, ValueError, OverflowError) as error:
            hint = _hint(self.cron)
            raise InvalidSchedule(f"cron {self.cron!r}: {error}{hint}", at="cron") from error
        if due is None:
            raise InvalidSchedule(f"cron {self.cron!r} is never due", at="cron")
        return due

    def next_times(self, moment: float, count: int) -> tuple[float, ...]:
        """Return the next `count` due times after that moment. Raises as `after` does."""
        times: list[float] = []
        for _ in range(count):
            times.append(self.after(times[-1] if times else moment))
        return tuple(times)

    @property
    def days_note(self) -> str | None:
        """Explanation of how day of month and day of week combine; None unless both are given."""
        fields = self.cron.split()
        if len(fields) < 5:
            return None
        day, weekday = fields[-3], fields[-1]
        if day == "*" or weekday == "*":
            return None
        if day.startswith("*") or weekday.startswith("*"):
            return f"Day of month {day} and day of week {weekday}: due on days that fit both."
        return (
            f"Day of month {day} and day of week {weekday}: due on days that fit either of them, "
            "not only on those that fit both."
        )

    def due_between(
        self, since: float, now: float, *, jitter: float, grace: float, name: str
    ) -> DueTimes:
        """Decide about the due times from `since`, itself a due time, until `now`.

        Each due time within the last CATCH_UP_WINDOW seconds is fired. If there is none, the latest
        due time is fired, unless it is older than `grace`. The others are missed.
        """
        fired: list[float] = []
        first_missed, missed = since, 0
        for number, due in enumerate(self._due_times_from(since)):
            age = now - with_jitter(name, due, jitter)
            if age < 0:
                return DueTimes(tuple(fired), (first_missed, missed) if missed else None, due)
            if fired and now - with_jitter(name, fired[-1], jitter) > CATCH_UP_WINDOW:
                fired.pop()  # it is not the latest one
                missed += 1
            if age <= max(grace, CATCH_UP_WINDOW):
                fired.append(due)
            else:
                missed += 1
            if number >= MAX_COUNTED:
                break
        # Too many to be examined one by one: all until the catch-up window count as missed, those
        # in `fired`, too, and only that window's are examined.
        recent = self.after(max(now - CATCH_UP_WINDOW - jitter, since))
        rest = self.due_between(recent, now, jitter=jitter, grace=grace, name=name)
        return DueTimes(rest.fired, (first_missed, missed + len(fired)), rest.next_at)

    def _due_times_from(self, due: float) -> Iterator[float]:
        while True:
            yield due
            due = self.after(due)


_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
"""Lowest and highest value of each of the five fields."""
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_RANGE = re.compile(r"(\w{1,3})-(\w{1,3})(?:/(\d{1,2}))?")


def _hint(cron: str) -> str:
    """Return what to write in place of an invalid expression; "" where that is unknown."""
    text = cron.strip().lower()
    if text in _NICKNAMES:
        return f": write '{_NICKNAMES[text]}'"
    fields = cron.split()
    if len(fields) != len(_RANGES):
        return ": write five fields: minute, hour, day of month, month, day of week"
    corrected = " ".join(_correct_field(field, index) for index, field in enumerate(fields))
    try:
        next(CronSim(corrected, datetime(2024, 1, 1, tzinfo=UTC)))
    except (CronSimError, ValueError, OverflowError, StopIteration):
        return ""
    return f": write '{corrected}'"


def _correct_field(field: str, index: int) -> str:
    """Replace what only other systems understand: `?`, and ranges that wrap around (`FRI-MON`)."""
    if field == "?":
        return "*"
    return ",".join(_split_range(part, index) for part in field.split(","))


def _split_range(part: str, index: int) -> str:
    """Write a range that wraps around as two ranges, or with steps as a list of values."""
    match = _RANGE.fullmatch(part)
    low, high = _RANGES[index]
    first, last = (_value(match[1], index), _value(match[2], index)) if match else (None, None)
    if match is None or first is None or last is None or not low <= last < first <= high:
        return part
    if match[3] is None:
        ends = ((first, high), (low, last))
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ends)
    span = high - low + 1
    steps = range(first, last + span + 1, max(int(match[3]), 1))
    return ",".join(str(low + (value - low) % span) for value in steps)


def _value(word: str, index: int) -> int | None:
    """Return the number that a word stands for in the field with this index; None if none."""
    if word.isascii() and word.isdecimal():
        return int(word)
    names = {3: _MONTHS, 4: _WEEKDAYS}.get(index, [])
    return names.index(word.upper()) + _RANGES[index][0] if word.upper() in names else None


def with_jitter(name: str, due: float, jitter: float) -> float:
    """Return when a due time is fired: up to `jitter` seconds later. The delay depends on the
    entry's name and the time alone, so that all schedulers agree on it."""
    if not jitter:
        return due
    digest = hashlib.sha256(f"{name}/{due}".encode()).digest()
    return due + jitter * (int.from_bytes(digest[:8]) / 2**64)
