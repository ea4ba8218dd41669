"""Outcomes that a handler can return: a closed set. Anything else is an error.

A handler returns one of these; an exception is turned into one by
`services.engine.jobs.retry.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.services.engine.records.joins import WhenDead


@dataclass(frozen=True, slots=True)
class Job:
    """A follow-up job of a handler."""

    job_type: str
    payload: Mapping[str, Any]
    lane: str | None = None
    """Lane to publish to; None keeps the parent's lane where the type has it, else the type's
    first lane."""
    priority: int | None = None
    """0 to 10; None takes the parent's."""
    own_pipeline: bool = False
    """Whether the job begins a pipeline of its own, as each paper of a query does, instead of being
    a stage of its parent's."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished; `result` (JSON) is kept in the ledger."""

    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Next:
    """The job is finished and others follow. Their ids are derived from this job's id and their
    type, so that a repeat publishes the same jobs, not new ones."""

    jobs: Sequence[Job]
    result: Mapping[str, Any] = field(default_factory=dict)
    then: Job | None = None
    """Published once, when all of `jobs`, and all jobs that followed from them, have ended; its
    handler reads their results by `ctx.joined()`."""
    when_dead: WhenDead = "wait"
    """What happens to `then` when some of the jobs are dead: `wait` until they were redriven and
    have succeeded, `go_on` without them, or `fail`: be dead, too."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry later, using an attempt. Waits for the policy's backoff, or for `after` seconds if that
    is longer."""

    reason: str
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run again after about `after` seconds, without using an attempt."""

    after: float
    reason: str = "snoozed"


@dataclass(frozen=True, slots=True)
class Discard:
    """Give up for good: the job goes to the dead letters with the reason `permanent`."""

    reason: str


Outcome = Done | Next | Retry | Snooze | Discard
