"""Records of pauses: which jobs must not begin, until when, who paused them, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from switchyard.broker import patterns
from switchyard.broker.lanes import LANES, lane_of, queue_name

MAX_PAUSE_SECONDS = 366 * 24 * 3600.0
"""Seconds of a pause with an end (`--for`), at most; one without an end lasts until it is
resumed."""
MAX_PAUSES = 200
"""Pauses that may be in force at a time: each claim is compared with all of them."""
MAX_TARGET_LENGTH = 200
"""Characters of a pause's target."""
MAX_REASON_LENGTH = 500
"""Characters of the reason for a pause."""


class PauseScope(StrEnum):
    """What a pause applies to."""

    LANE = "lane"
    TYPE = "type"
    SOURCE = "source"
    QUEUE = "queue"
    """The jobs of one worker kind in a lane, `<lane>.<worker>`."""


@dataclass(frozen=True, slots=True)
class NewPause:
    """A pause as somebody asks for it. Raises ValueError for a target that its scope can't have."""

    scope: PauseScope
    target: Annotated[
        str, Field(min_length=1, max_length=MAX_TARGET_LENGTH, pattern=patterns.PLAIN)
    ]
    created_by: str
    reason: str | None = None
    seconds: float | None = None
    """Seconds that it lasts; None: until it is resumed."""

    def __post_init__(self) -> None:
        lanes = [lane.name for lane in LANES]
        lane = lane_of(self.target) if self.scope is PauseScope.QUEUE else self.target
        if self.scope in (PauseScope.LANE, PauseScope.QUEUE) and lane not in lanes:
            raise ValueError(f"there is no lane {lane!r}: the lanes are {', '.join(lanes)}")
        if self.scope is PauseScope.QUEUE and not self.target.partition(".")[2]:
            raise ValueError("name a queue as LANE.WORKER, for example hot.llm")
        if self.seconds is not None and not 1 <= self.seconds <= MAX_PAUSE_SECONDS:
            raise ValueError("a pause lasts from one second to 366 days")


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """A pause. Times are seconds since the epoch, by the database's clock."""

    id: str
    scope: PauseScope
    target: str
    reason: str | None
    created_by: str
    created_at: float
    ends_at: float | None
    """When it ends by itself; None: not before it is resumed."""
    ended_at: float | None = None
    """When it ended; None while it is in force."""
    ended_by: str | None = None
    """Who ended or replaced it; None where its time was over."""

    def __str__(self) -> str:
        return f"{self.scope} {self.target}"

    @property
    def remedy(self) -> str:
        """The command that ends it."""
        return f"`jobctl resume {self.id}`"


@dataclass(frozen=True, slots=True)
class ActivePauses:
    """The pauses that are in force at a moment."""

    pauses: tuple[PauseRecord, ...] = ()
    _by_target: dict[tuple[str, str], PauseRecord] = field(default_factory=dict, compare=False)

    @classmethod
    def from_records(cls, pauses: Iterable[PauseRecord]) -> Self:
        """Index the pauses by scope and target."""
        records = tuple(pauses)
        return cls(records, {(each.scope, each.target): each for each in records})

    def pause_of(self, lane: str, worker: str, job_type: str, source: str) -> PauseRecord | None:
        """Return a pause that holds a job of that lane, worker, type and source; None where none
        does."""
        if not self.pauses:
            return None
        keys = (
            (PauseScope.LANE, lane),
            (PauseScope.QUEUE, queue_name(lane, worker)),
            (PauseScope.TYPE, job_type),
            (PauseScope.SOURCE, source),
        )
        return next((self._by_target[key] for key in keys if key in self._by_target), None)
