"""Retention ages, and reports of what was removed. Ages are seconds; None is for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from switchyard.services.common.settings import Settings
from switchyard.services.engine.records.states import State


@dataclass(frozen=True, slots=True)
class RetentionAges:
    """Seconds for which ended jobs and operations are kept, from their end."""

    states: Mapping[State, float | None]
    """Ages of succeeded, cancelled and dead jobs."""
    types: Mapping[str, float | None] = field(default_factory=dict)
    """Ages of succeeded and cancelled jobs by type, which replace those of the states."""
    lanes: Mapping[str, float | None] = field(default_factory=dict)
    """Ages of succeeded and cancelled jobs by lane, where their type has none."""
    operations: float | None = None

    @classmethod
    def of(cls, settings: Settings) -> RetentionAges:
        """Return the ages that the settings give."""
        return cls(
            states={
                State.SUCCEEDED: settings.keep_succeeded,
                State.CANCELLED: settings.keep_cancelled,
                State.DEAD: settings.keep_dead,
            },
            types=settings.keep_types,
            lanes=settings.keep_lanes,
            operations=settings.keep_operations,
        )

    def shortest(self, state: State, lane: str | None = None) -> float | None:
        """Return the shortest age of jobs in that final state, and in that lane if given; None
        where all are kept for ever."""
        ages = [self.states[state]]
        if state is not State.DEAD:
            if lane is None:
                ages += self.lanes.values()
            elif lane in self.lanes:
                ages = [self.lanes[lane]]
            ages += self.types.values()
        return min((age for age in ages if age is not None), default=None)

    def longer_by(self, seconds: float) -> RetentionAges:
        """Return the ages, each longer by `seconds`."""

        def longer(age: float | None) -> float | None:
            return None if age is None else age + seconds

        return RetentionAges(
            {state: longer(age) for state, age in self.states.items()},
            {name: longer(age) for name, age in self.types.items()},
            {name: longer(age) for name, age in self.lanes.items()},
            longer(self.operations),
        )


class KeptFor(StrEnum):
    """Why a job that has ended is kept."""

    AGE = "age"
    """The job is not old enough."""
    OPERATION = "operation"
    """The backfill that it belongs to has not ended."""
    LETTER = "letter"
    """The job's dead letter waits to be redriven."""
    FOLLOWERS = "followers"
    """Jobs that followed from the job are kept."""
    JOIN = "join"
    """The job that waited for it is kept, and reads its result."""
    REDRIVE = "redrive"
    """A redrive that has sent it has not ended."""
    KEY = "key"
    """The job's idempotency key must still be known."""


@dataclass(frozen=True, slots=True)
class ExaminedJobs:
    """Ended jobs of one state and lane that may be old enough, the newest first."""

    removable: tuple[str, ...]
    kept: Counter[KeptFor]
    types: Counter[str]
    """Number of removable jobs, by type."""
    after: tuple[float, str] | None
    """Position from which to continue; None at the end."""
    seconds: float
    """Seconds that the transaction took."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows that one transaction has removed."""

    rows: Counter[str]
    """Number of rows, by table."""
    is_complete: bool
    """Whether it removed all that it should."""
    seconds: float
