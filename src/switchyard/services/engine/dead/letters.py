"""Filter dead letters of `jobs.dead` or of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Annotated, Any, Protocol

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo
from switchyard.broker.lanes import lane_of, split_routing_key
from switchyard.broker.message import JobMessage
from switchyard.broker.times import parse_moment
from switchyard.broker.wording import pluralize
from switchyard.services.engine.dead.causes import Cause, cause_of
from switchyard.services.engine.records.requests import DeadLetterFilter, LetterFields


class DeadLetterLike(Protocol):
    """A dead letter, from the broker or from the ledger."""

    @property
    def id(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def info(self) -> DeadLetterInfo: ...
    @property
    def message(self) -> JobMessage | None: ...
    @property
    def redrives(self) -> int: ...
    @property
    def left_behind(self) -> int:
        """Number of messages that `ack` leaves in `jobs.dead`, to be removed later."""
        ...

    def ack(self) -> bool:
        """Acknowledge the letter: it need not be kept any longer."""
        ...


def job_type_of(letter: DeadLetterLike) -> str:
    """Return the job type of a letter; without a readable job, the one in its routing key."""
    if letter.message is not None:
        return letter.message.job_type
    try:
        return split_routing_key(letter.info.routing_key)[1]
    except ValueError:
        return ""


def cause_of_letter(letter: DeadLetterLike) -> Cause:
    """Return the cause of a letter's death, which is its group."""
    info = letter.info
    return cause_of(
        str(info.reason),
        job_type_of(letter),
        info.error_type,
        info.message,
        info.traceback,
    )


def _operation_of(letter: DeadLetterLike) -> str | None:
    return letter.message.metadata.operation_id if letter.message is not None else None


CLOCK_TOLERANCE = 5.0
"""Seconds by which the clocks of hosts may differ."""


def was_dead(letter: DeadLetterLike, moment: datetime) -> bool:
    """Tell whether a letter's job had died by a moment, within CLOCK_TOLERANCE. True if its time of
    death can't be read."""
    dead_at = parse_moment(letter.info.dead_at)
    return dead_at is None or (dead_at - moment).total_seconds() <= CLOCK_TOLERANCE


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LetterFilter(LetterFields):
    """Selects dead letters that match every field that is set. Raises pydantic's ValidationError
    for invalid values."""

    older_than: Annotated[
        float | None, Field(ge=0, le=1e9, description="Seconds since the death, at least.")
    ] = None
    younger_than: Annotated[
        float | None, Field(ge=0, le=1e9, description="Seconds since the death, at most.")
    ] = None

    @property
    def is_empty(self) -> bool:
        return self == LetterFilter()

    def matches(self, letter: DeadLetterLike, moment: datetime) -> bool:
        """Tell whether a letter matches; its age is counted up to `moment`."""
        info = letter.info
        job_type = letter.message.job_type if letter.message else ""
        return (
            (not self.ids or letter.id in self.ids)
            and (self.job_type is None or job_type == self.job_type)
            and (self.lane is None or lane_of(info.routing_key) == self.lane)
            and (self.reason is None or str(info.reason) == self.reason)
            and (self.error_type is None or info.error_type == self.error_type)
            and (self.operation is None or _operation_of(letter) == self.operation)
            and self._matches_age(info.dead_at, moment)
            # Last, as it is the most expensive condition.
            and (self.group is None or cause_of_letter(letter).fingerprint.startswith(self.group))
        )

    def overlaps(self, other: LetterFilter) -> bool:
        """Tell whether a letter could match both. Ages are ignored, as they change."""
        if self.ids and other.ids and not self.ids & other.ids:
            return False
        if self.group and other.group:
            shorter, longer = sorted((self.group, other.group), key=len)
            if not longer.startswith(shorter):
                return False
        return all(
            None in (own_value := getattr(self, name), other_value := getattr(other, name))
            or own_value == other_value
            for name in ("job_type", "lane", "reason", "error_type", "operation")
        )

    def for_index(self, state: str | None, moment: datetime) -> DeadLetterFilter:
        """Return a filter of the ledger's index for the same letters, in that state; None for any
        state."""
        timestamp = moment.timestamp()
        return DeadLetterFilter(
            **{each.name: getattr(self, each.name) for each in fields(LetterFields)},
            state=state,
            since=None if self.younger_than is None else timestamp - self.younger_than,
            until=None if self.older_than is None else timestamp - self.older_than,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = asdict(self) | {"ids": sorted(self.ids)}
        return {name: value for name, value in values.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LetterFilter:
        return cls(**{**values, "ids": frozenset(values.get("ids", ()))})

    def describe(self) -> str:
        """Describe the filter in a few words."""
        parts = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in self.to_json().items()
            if name != "ids"
        ]
        if len(self.ids) == 1:
            parts.insert(0, next(iter(self.ids)))
        elif self.ids:
            parts.insert(0, f"{pluralize(len(self.ids), 'letter')} by id")
        return ", ".join(parts) or "all dead letters"

    def _matches_age(self, dead_at: str, moment: datetime) -> bool:
        if self.older_than is None and self.younger_than is None:
            return True
        died_at = parse_moment(dead_at)
        if died_at is None:
            return False
        age = (moment - died_at).total_seconds()
        return (self.older_than is None or age >= self.older_than) and (
            self.younger_than is None or age <= self.younger_than
        )
