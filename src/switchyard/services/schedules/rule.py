"""When an entry is due: a cron expression in a time zone. Pure, so its rules are tested as tables.

Through changes of summer time it is as Debian's cron has it. An entry at a fixed time (neither
minute nor hour begins with `*`) is due once a day whatever the clocks do: a time that is skipped in
spring counts at the end of the gap, and of one that comes twice in autumn the first counts. Other
entries (`*/15 * * * *`) go by time that passes: they are due in both hours of autumn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from switchyard.services.errors import InvalidInput

AT_ONCE = 60.0
"""Seconds for which every due time that has passed is fired: as long as one scheduler may take to
notice that another has died, and more."""
COUNTED = 5_000
"""Due times that are gone through one by one, when nobody was there for long."""
TRIED = 1_000
"""Times that are passed over because they come again: in autumn there are 60 minutes of them."""


class InvalidSchedule(InvalidInput):
    """An entry that can't be what it says; the text says what is wrong."""

    def __init__(self, text: str, *, at: str | None = None) -> None:
        super().__init__(text)
        self.at = at
        """The field that is wrong, where it is one."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What becomes of the due times that have passed."""

    fired: tuple[float, ...]
    missed: tuple[float, int] | None
    """The first of those that are not fired any more, and how many they are at least."""
    next_at: float
    """The first that has not come."""


@dataclass(frozen=True, slots=True)
class CronRule:
    """Moments are seconds since the epoch."""

    cron: str
    zone: ZoneInfo

    @classmethod
    def of(cls, cron: str, timezone: str) -> CronRule:
        """Raises InvalidSchedule."""
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
        """The first due time after that moment. Raises InvalidSchedule for an expression that is
        none, or is never due."""
        start = datetime.fromtimestamp(moment, UTC)
        # UTC itself is told by identity in there.
        local = start if self.zone.key == "UTC" else start.astimezone(self.zone)
        try:
            times = islice(CronSim(self.cron, local), TRIED)
            due = next((at for at in (each.timestamp() for each in times) if at > moment), None)
        except (CronSimError, ValueError, OverflowError) as error:
            raise InvalidSchedule(f"cron {self.cron!r}: {error}", at="cron") from error
        if due is None:
            raise InvalidSchedule(f"cron {self.cron!r} is never due", at="cron")
        return due

    def passed(self, since: float, now: float, *, jitter: float, grace: float, name: str) -> Passed:
        """What becomes of the due times from `since`, which is one, until now.

        Those of the last AT_ONCE seconds are fired, each of them. Where there are none, the last
        one is, unless it is older than `grace`. The rest are missed.
        """
        fired: list[float] = []
        first_missed, missed = since, 0
        for number, due in enumerate(self._from(since)):
            age = now - put_off(name, due, jitter)
            if age < 0:
                return Passed(tuple(fired), (first_missed, missed) if missed else None, due)
            if fired and now - put_off(name, fired[-1], jitter) > AT_ONCE:
                fired.pop()  # it was the last one until now
                missed += 1
            if age <= max(grace, AT_ONCE):
                fired.append(due)
            else:
                missed += 1
            if number >= COUNTED:
                break
        # Nobody was there for long: what is left of it is not gone through.
        recent = self.after(max(now - AT_ONCE - jitter, since))
        rest = self.passed(recent, now, jitter=jitter, grace=grace, name=name)
        return Passed(rest.fired, (first_missed, missed + len(fired)), rest.next_at)

    def _from(self, due: float) -> Iterator[float]:
        while True:
            yield due
            due = self.after(due)


def put_off(name: str, due: float, jitter: float) -> float:
    """When a due time is fired: put off by up to `jitter` seconds, by as much for whoever asks, so
    that all schedulers agree, and by something else for other entries and other times."""
    if not jitter:
        return due
    digest = hashlib.sha256(f"{name}/{due}".encode()).digest()
    return due + jitter * (int.from_bytes(digest[:8]) / 2**64)
