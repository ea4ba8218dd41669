"""Records of joins: jobs that wait for other jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from switchyard.services.engine.records.states import State

WhenDead = Literal["wait", "go_on", "fail"]
"""What happens to the waiting job when all the others have ended and some are dead.

`wait`: it waits until those were redriven and have succeeded. `go_on`: it runs anyway, and can read
which died. `fail`: it is dead at once, and runs when it is redriven after them. A cancelled job
counts as dead for `fail`, and as ended for the others.
"""

WHEN_DEAD: tuple[WhenDead, ...] = ("wait", "go_on", "fail")


@dataclass(frozen=True, slots=True)
class Joining:
    """Conditions on which a job waits for others."""

    when_dead: WhenDead = "wait"
    held: bool = False
    """More jobs may be added: the job waits in any case until `seal`."""
    again: bool = False
    """Once the waiting job was released, a copy of it is made each time that all the others have
    ended anew, as after a redrive."""


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """A join and how many of its jobs have ended. Times are seconds since the epoch."""

    id: str
    """The job that waits."""
    when_dead: WhenDead
    held: bool
    """True until the join is sealed: more jobs may be added to it."""
    total: int
    """Jobs that it waits or waited for, with those that followed from the first ones."""
    open: int
    """Jobs among them that have not ended."""
    dead: int
    cancelled: int
    made_at: float
    fulfilled_at: float | None
    """When the waiting job was released for publishing; None while it waits."""

    @property
    def succeeded(self) -> int:
        return self.total - self.open - self.dead - self.cancelled

    @property
    def is_stuck(self) -> bool:
        """Whether only a redrive (or going on without the dead jobs) can take it further."""
        return self.fulfilled_at is None and not self.held and not self.open and self.dead > 0


@dataclass(frozen=True, slots=True)
class JoinedJob:
    """A job that another job waited for, as its handler sees it."""

    job_id: str
    job_type: str
    state: State
    """Succeeded, dead or cancelled; any other state where the job was redriven meanwhile."""
    parent_id: str | None
    """The job that it followed from."""
    payload: Mapping[str, Any]
    result: Mapping[str, Any] | None
    error_type: str | None
    error_message: str | None
    reason: str | None = None
    """Reason of its death."""
