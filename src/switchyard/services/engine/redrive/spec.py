"""The specification and the progress of a redrive, and how one is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from switchyard.broker.wording import pluralize
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.dead.changes import Change, InvalidRedrive
from switchyard.services.engine.dead.groups import require_group
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.jobs.local_fields import refusals_in_part
from switchyard.services.engine.jobs.registry import JobType, Registry, UnknownJobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.requests import InvalidRequest, RequestFieldError
from switchyard.services.engine.records.bulk import (
    BulkHold,
    BulkOperation,
    BulkState,
    NotedProgress,
)
from switchyard.services.engine.records.states import RedriveOutcome

KIND = "redrive"
UNFINISHED = (BulkState.WAITING, BulkState.RUNNING, BulkState.DRAINING, BulkState.PAUSED)
HALT_WINDOW = 200
"""Letters that may be unfinished at once in a redrive that halts on failures: otherwise all would
be sent before the first one fails."""
_START = "start of redrives"


class RedriveConflict(bulk_control.BulkConflict):
    """Another unfinished redrive includes some of the same letters."""


@dataclass(frozen=True, slots=True)
class RedriveSpec:
    """Specification of a redrive."""

    which: LetterFilter
    change: Change = field(default_factory=Change)
    limit: int | None = None
    """Maximum number of letters, oldest first; None: no limit."""
    canary: int | None = None
    """Number of letters to send first; the others follow only after all of these have succeeded."""
    halt_on: float | None = None
    """Fraction of the letters (above 0, at most 1) that may fail again before the redrive halts."""
    from_ledger: bool = False
    """Whether letters that the broker no longer has are redriven from the ledger's copy."""
    remote: bool = True
    """Whether the redrive was requested over HTTP: its change may not set local-only fields, also
    later, when a scheduler runs it."""

    def check(self) -> None:
        """Raise InvalidRedrive for values that make no sense."""
        self.change.check()
        for name, value in (("limit", self.limit), ("canary", self.canary)):
            if value is not None and value < 1:
                raise InvalidRedrive(f"{name} must be 1 or more")
        if self.halt_on is not None and not 0 < self.halt_on <= 1:
            raise InvalidRedrive("halt_on must be above 0 and at most 1 (or 100 %)")

    def check_remote(self, registry: Registry) -> None:
        """Refuse a change from outside that sets a local-only field, before each letter would be
        refused later. Raises InvalidRequest."""
        field_errors = [
            RequestFieldError(
                ("change", part, each.field), f"{job_type.name}: {each.message}{self._hint}"
            )
            for part in ("payload", "merge")
            for job_type in self._possible_types(registry)
            for each in refusals_in_part(job_type.payload_model, getattr(self.change, part) or {})
        ]
        if field_errors:
            raise InvalidRequest(*field_errors)

    def _possible_types(self, registry: Registry) -> list[JobType]:
        """Return the job types that the copies can have, as far as known without reading the
        letters."""
        named_type = self.change.to.partition(".")[2] if self.change.to else self.which.job_type
        try:
            return (
                registry.publishable_types
                if named_type is None
                else [registry.get_publishable(named_type)]
            )
        except UnknownJobType:
            return []

    @property
    def _hint(self) -> str:
        if self.change.payload is not None:
            return "; give `merge` with the other fields, and what was there stays"
        is_any = self.change.to is None and self.which.job_type is None
        return "; name the job_type in the filter where another one is meant" if is_any else ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        plain: dict[str, Any] = {"filter": self.which.to_json(), "change": self.change.to_json()}
        for name in ("limit", "canary", "halt_on"):
            if (value := getattr(self, name)) is not None:
                plain[name] = value
        plain["remote"] = self.remote
        return plain | ({"from_ledger": True} if self.from_ledger else {})

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RedriveSpec:
        options = {key: fields[key] for key in fields if key not in ("filter", "change")}
        return cls(
            LetterFilter.from_json(fields["filter"]),
            Change.from_json(fields["change"]),
            **options,
        )


@dataclass(frozen=True, slots=True)
class RedriveProgress(NotedProgress):
    """Progress of a redrive: the cursor and counts in its record."""

    total: int | None = None
    """Letters that matched at its start, by the index."""
    redriven: int = 0
    dropped: int = 0
    """Letters whose jobs needed no redrive any more."""
    invalid: int = 0
    """Letters that stay in `jobs.dead`, as they are invalid with the change."""
    succeeded: int = 0
    failed: int = 0
    undone: int = 0
    unfinished: int = 0
    """Redriven jobs that had not ended when the outcomes were last read."""


def only_in_ledger(number: int) -> str:
    """Describe letters that the index lists and the broker has lost."""
    return (
        f"{pluralize(number, 'letter')} of these can't be found on the broker any more: "
        "`--from-ledger` sends the ledger's copies"
    )


async def start_redrive(
    ledger: Ledger,
    spec: RedriveSpec,
    *,
    created_by: str,
    reason: str | None = None,
    rate: float | None = None,
    hold: BulkHold | None = None,
) -> BulkOperation:
    """Record a redrive; a scheduler runs it, or with `hold` the `BulkRunner` whose hold that is.

    Raises InvalidRedrive, InvalidLimits, UnknownGroup, RedriveConflict, LedgerUnavailable.
    """
    spec.check()
    bulk_control.check_limits({"rate": rate})
    await require_group(ledger, spec.which)
    async with ledger.leases.holding_lease(_START):
        await refuse_overlap(ledger, spec)
        return await ledger.bulk.create_bulk(
            bulk_control.new_bulk_id(KIND),
            kind=KIND,
            title=title_of(spec),
            spec=spec.to_json(),
            created_by=created_by,
            reason=reason,
            rate=rate,
            max_open=HALT_WINDOW if spec.halt_on is not None else None,
            hold=hold,
        )


async def resume_redrive(
    ledger: Ledger, operation_id: str, *, hold: BulkHold | None = None
) -> BulkOperation:
    """Resume a redrive. After a halt, only new failures count towards the next one. `hold` as for
    `start_redrive`.

    Raises UnknownBulkOperation, BulkConflict.
    """
    operation = await bulk_control.require_bulk(ledger, operation_id, KIND)
    async with ledger.leases.holding_lease(_START):
        await refuse_overlap(ledger, RedriveSpec.from_json(operation.spec), except_id=operation.id)
        return await bulk_control.resume(ledger, operation.id, hold=hold)


async def with_outcomes(ledger: Ledger, operation: BulkOperation) -> BulkOperation:
    """Return the operation with the present outcomes of its letters. Raises LedgerUnavailable."""
    outcomes = await ledger.redrives.settle_redriven(operation.id)
    counts = {
        "succeeded": outcomes.get(RedriveOutcome.SUCCEEDED, 0),
        "failed": outcomes.get(RedriveOutcome.FAILED, 0),
        "undone": outcomes.get(RedriveOutcome.UNDONE, 0),
        "unfinished": outcomes.get(None, 0),
    }
    return replace(operation, counts={**operation.counts, **counts})


async def refuse_overlap(
    ledger: Ledger, spec: RedriveSpec, *, except_id: str | None = None
) -> None:
    """Raise RedriveConflict where an unfinished redrive could take the same letters."""
    page = await ledger.bulk.list_bulk(KIND, states=UNFINISHED, limit=1000)
    for other in page.items:
        other_spec = RedriveSpec.from_json(other.spec)
        if other.id != except_id and spec.which.overlaps(other_spec.which):
            command = "jobctl dead redrives"
            paused = other.state is BulkState.PAUSED
            advice = f"`{command} resume {other.id}`" if paused else "wait for it"
            raise RedriveConflict(
                f"{other.id} ({other.title}) is {other.state} and takes some of the same letters: "
                f"{advice}, or `{command} cancel {other.id}`"
            )


def title_of(spec: RedriveSpec) -> str:
    """Describe the redrive in one line."""
    parts = [spec.which.describe()]
    if spec.change.to is not None:
        parts.append(f"to {spec.change.to}")
    if not replace(spec.change, to=None).is_empty:
        parts.append("changed")
    if spec.from_ledger:
        parts.append("from the ledger")
    return ", ".join(parts)
