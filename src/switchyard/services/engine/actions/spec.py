"""Bulk actions: their specification and progress, and how one is planned, started or undone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from switchyard.broker.lanes import lane_named
from switchyard.broker.message import MAX_PRIORITY
from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkHold, BulkOperation, NotedProgress
from switchyard.services.engine.records.job_actions import TAKES, JobAction
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.results import JobSummary
from switchyard.services.engine.records.states import State

HALT_WINDOW = 200
"""Reruns that may be unfinished at once where failures halt the action."""
MAX_COUNTED = 1_000_000
MAX_EXAMPLES = 5
MAX_IDS = 10_000
KINDS = tuple(action.value for action in JobAction)
_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/reruns")


class InvalidAction(InvalidInput):
    """The action can't be done as it was asked for; the text says what to change."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action, and the jobs that it applies to."""

    action: JobAction
    which: JobFilter
    change: Change = field(default_factory=Change)
    """For a rerun: the change that is made to each job."""
    lane: str | None = None
    """For a move: the new lane."""
    priority: int | None = None
    """For a move: the new priority, 0 to 10."""
    limit: int | None = None
    """Maximum number of jobs, oldest first; None: no limit."""
    halt_on: float | None = None
    """For a rerun: the fraction of ended jobs (above 0, at most 1) that may die before it halts."""
    canary: int | None = None
    """For a rerun: publish so many first, and the others only after all of these have succeeded."""
    undo_of: str | None = None
    """The earlier action that this one undoes. For a move: its jobs go back to their old lane and
    priority. For a rerun: it cancelled jobs, and each of them is rerun once, however often that is
    undone."""
    remote: bool = True
    """Whether it was requested over HTTP: then its change may not set local-only fields."""

    def check(self) -> None:
        """Raise InvalidAction, InvalidRedrive for what can't be meant."""
        if self.which.is_empty:
            raise InvalidAction("say which jobs: ids, or a filter")
        if len(self.which.ids) > MAX_IDS:
            raise InvalidAction(f"at most {MAX_IDS:,} ids; use a filter")
        state = self.which.state
        if state is not None and state not in TAKES[self.action]:
            states = ", ".join(sorted(TAKES[self.action]))
            raise InvalidAction(f"no {state} job can be {self.action.participle}: only {states}")
        if self.limit is not None and self.limit < 1:
            raise InvalidAction("limit must be 1 or more")
        if self.action is JobAction.MOVE:
            self._check_move()
        elif self.lane is not None or self.priority is not None:
            raise InvalidAction("a lane and a priority are for moves")
        if self.action is not JobAction.RERUN and not (
            self.change.is_empty and self.halt_on is None and self.canary is None
        ):
            raise InvalidAction("a change, a canary and halt_on are for reruns")
        if self.canary is not None and self.canary < 1:
            raise InvalidAction("canary must be 1 or more")
        if self.halt_on is not None and not 0 < self.halt_on <= 1:
            raise InvalidAction("halt_on must be above 0 and at most 1 (or 100 %)")
        self.change.check()

    def _check_move(self) -> None:
        if self.lane is None and self.priority is None and self.undo_of is None:
            raise InvalidAction("say where to: a lane, a priority, or both")
        if self.priority is not None and not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidAction(f"priority must be 0 to {MAX_PRIORITY}")
        if self.lane is not None:
            try:
                lane_named(self.lane)
            except ValueError as error:
                raise InvalidAction(str(error)) from error

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        plain = {
            "filter": self.which.to_json(),
            "change": self.change.to_json(),
            "lane": self.lane,
            "priority": self.priority,
            "limit": self.limit,
            "halt_on": self.halt_on,
            "canary": self.canary,
            "undo_of": self.undo_of,
        }
        set_fields = {name: value for name, value in plain.items() if value not in (None, {})}
        return set_fields | {"remote": self.remote}

    @classmethod
    def from_operation(cls, operation: BulkOperation) -> ActionSpec:
        fields = dict(operation.spec)
        return cls(
            JobAction(operation.kind),
            JobFilter.from_json(fields.pop("filter", {})),
            Change.from_json(fields.pop("change", {})),
            **fields,
        )

    @property
    def title(self) -> str:
        """Describe the action in one line."""
        parts = [self.which.describe()]
        if self.lane is not None:
            parts.append(f"to lane {self.lane}")
        if self.priority is not None:
            parts.append(f"to priority {self.priority}")
        if self.undo_of is not None and self.action is JobAction.MOVE:
            parts = [f"back to where {self.undo_of} took them from"]
        if not self.change.is_empty:
            parts.append("changed")
        if self.limit is not None:
            parts.append(f"the {self.limit:,} oldest")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ActionProgress(NotedProgress):
    """Progress of an action: the counts in its record."""

    total: int | None = None
    """Jobs that matched when it began; at most a million are counted."""
    done: int = 0
    """Cancelled, told to stop, published again, or moved."""
    stopping: int = 0
    """Running jobs among the cancelled ones: their workers were told to stop them."""
    skipped: int = 0
    """Jobs that need no action or allow none; the notes say why."""
    succeeded: int = 0
    """New jobs of a rerun that have succeeded."""
    failed: int = 0
    """New jobs of a rerun that have died."""
    unfinished: int = 0
    """New jobs of a rerun that have not ended."""


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """Effect that an action would have."""

    matched: int
    """Matching jobs; at most a million are counted."""
    examples: tuple[JobSummary, ...]
    """The oldest."""


async def plan_action(ledger: Ledger, spec: ActionSpec) -> ActionPlan:
    """Count the jobs, and return the oldest as examples; nothing is changed. Raises InvalidAction,
    LedgerUnavailable."""
    spec.check()
    states = TAKES[spec.action]
    at_most = min(spec.limit or MAX_COUNTED, MAX_COUNTED)
    number = await ledger.job_reads.count_matching(spec.which, states, at_most=at_most)
    examples = await ledger.job_reads.matching_jobs(
        spec.which, states, limit=min(MAX_EXAMPLES, at_most)
    )
    return ActionPlan(number, tuple(examples))


async def start_action(
    ledger: Ledger,
    spec: ActionSpec,
    *,
    created_by: str,
    reason: str | None = None,
    rate: float | None = None,
    hold: BulkHold | None = None,
) -> BulkOperation:
    """Record an action; a scheduler runs it, or with `hold` the `BulkRunner` whose hold that is.

    Raises InvalidAction, InvalidRedrive, InvalidLimits, LedgerUnavailable.
    """
    spec.check()
    bulk_control.check_limits({"rate": rate})
    title = spec.title
    if not spec.which.ids:
        # What a rerun publishes would fit the same filter.
        now = ledger.clock.time()
        until = now if spec.which.until is None else min(spec.which.until, now)
        spec = replace(spec, which=replace(spec.which, until=until))
    return await ledger.bulk.create_bulk(
        bulk_control.new_bulk_id(spec.action.value),
        kind=spec.action.value,
        title=title,
        spec=spec.to_json(),
        created_by=created_by,
        reason=reason,
        rate=rate,
        max_open=None if spec.halt_on is None and spec.canary is None else HALT_WINDOW,
        hold=hold,
    )


def undo_spec(operation: BulkOperation, *, remote: bool) -> ActionSpec:
    """Return the action that undoes an earlier one: what it cancelled is rerun, what it reran is
    cancelled, and what it moved goes back, as far as those jobs have not gone on."""
    match JobAction(operation.kind):
        case JobAction.CANCEL:
            which = JobFilter(acted_by=operation.id, state=State.CANCELLED)
            return ActionSpec(JobAction.RERUN, which, undo_of=operation.id, remote=remote)
        case JobAction.RERUN:
            return ActionSpec(JobAction.CANCEL, JobFilter(operation_id=operation.id), remote=remote)
        case JobAction.MOVE:
            which = JobFilter(acted_by=operation.id)
            return ActionSpec(JobAction.MOVE, which, undo_of=operation.id, remote=remote)


async def settled(ledger: Ledger, operation: BulkOperation) -> BulkOperation:
    """Return the operation with what has become of its new jobs by now, where it makes some. Raises
    LedgerUnavailable."""
    if operation.kind != JobAction.RERUN:
        return operation
    return replace(
        operation, counts={**operation.counts, **await rerun_outcomes(ledger, operation)}
    )


async def rerun_outcomes(ledger: Ledger, operation: BulkOperation) -> dict[str, int]:
    """Count the new jobs of a rerun by what has become of them. Raises LedgerUnavailable."""
    own, _ = await ledger.bulk_jobs.count_bulk_jobs(operation.id)
    ended = {State.SUCCEEDED: "succeeded", State.DEAD: "failed"}
    counts = {name: own.get(state, 0) for state, name in ended.items()}
    gone_on = sum(number for state, number in own.items() if state is not State.CANCELLED)
    return counts | {"unfinished": gone_on - sum(counts.values())}


def rerun_id_of(ids: JobIds, operation_id: str, job_id: str) -> str:
    """Make the id of the job that does another again: the same each time, so that one operation
    publishes none twice."""
    return ids.derive(_NAMESPACE, f"{operation_id}/{job_id}")
