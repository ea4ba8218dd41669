"""What a backfill is asked to do, and starting one."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self
from uuid import NAMESPACE_URL, uuid5

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from switchyard.broker.lanes import BACKFILL, lane_named
from switchyard.broker.message import MAX_PRIORITY, describe
from switchyard.services.backfill.sources import (
    BUILT_IN_MODULES,
    PATIENCE,
    InvalidBackfill,
    Item,
    Source,
    SourceAway,
    SourceContext,
    SourceFailed,
    Sources,
    Unusable,
)
from switchyard.services.backfill.template import MissingField, render
from switchyard.services.bulk.control import cancel as cancel_bulk
from switchyard.services.bulk.control import new_bulk_id, require_bulk
from switchyard.services.bulk.operations import LISTEN
from switchyard.services.files.storage import Storage
from switchyard.services.jobs.registry import (
    InvalidPayload,
    JobType,
    Registry,
    UnknownJobType,
)
from switchyard.services.ledger import Ledger
from switchyard.services.publishing.publisher import InvalidJob, JobRequest, prepare
from switchyard.services.records import WAITING, BulkOperation, Cancelled, LedgerError, NewJob
from switchyard.services.records.bulk import LEAST_RATE, MOST_RATE, MOST_WAITING
from switchyard.services.settings import Settings

KIND = "backfill"
PEEK = 20
"""Items that are made into jobs for trial before a backfill starts."""
CANCELLED_AT_ONCE = 1_000
NOTE_LENGTH = 300
"""Characters of what is noted about an item that can't be used."""
MOST: Mapping[str, int] = {"rate": MOST_RATE, "max_open": 2_000_000_000}
"""The highest limits; no limit at all is another matter."""

_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/backfills")


class BackfillSpec(BaseModel):
    """A backfill: what is gone through, and what becomes of each item."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """Name of the source: arxiv, file, documents, or one of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The source's options."""
    job_type: str | None = None
    """What is to be done with each item; the source's own job type where unset."""
    lane: str = BACKFILL.name
    payload: dict[str, Any] | None = None
    """Template of the payload, `{field}` where a value of the item goes; the item itself where
    unset."""
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    low: int | None = Field(default=None, ge=0, le=MOST_WAITING)
    """Messages in a queue at or below which publishing goes on; half of `high` where unset."""
    high: int | None = Field(default=None, ge=1, le=MOST_WAITING)
    """Messages in a queue at which publishing waits; half of the queue's limit where unset."""
    until: AwareDatetime | None = None
    """Nothing is published after this time."""
    remote: bool = True
    """Somebody outside has asked for it: what its payloads and options may say is held against
    that, also later, when a scheduler runs it."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError("the low watermark must be below the high one")
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """How items become jobs."""

    operation_id: str
    spec: BackfillSpec
    job_type: JobType
    registry: Registry
    source: type[Source]

    @classmethod
    def of(
        cls, operation_id: str, spec: BackfillSpec, source: type[Source], registry: Registry
    ) -> Plan:
        """Raises InvalidBackfill for a job type or lane that does not fit."""
        name = spec.job_type or source.job_type
        if name is None:
            raise InvalidBackfill(f"source {source.name} needs a job type: name one with --type")
        try:
            job_type = registry.get(name)
            lane_named(spec.lane)
        except (UnknownJobType, ValueError) as error:
            raise InvalidBackfill(str(error)) from error
        if spec.lane not in job_type.lanes:
            raise InvalidBackfill(
                f"{name} is not worked in lane {spec.lane}: use {' or '.join(job_type.lanes)}"
            )
        return cls(operation_id, spec, job_type, registry, source)

    def job(self, item: Item) -> NewJob:
        """The job of an item; its id is the same each time.

        Raises InvalidJob, InvalidPayload, MissingField: the item can't be made into a job.
        """
        template, values = self.spec.payload, item.values
        request = JobRequest(
            routing_key=f"{self.spec.lane}.{self.job_type.name}",
            payload=values if template is None else render(template, values),
            priority=self.spec.priority,
            max_attempts=self.spec.max_attempts,
            source=self.source.name,
            job_id=str(uuid5(_NAMESPACE, f"{self.operation_id}/{item.key}")),
            operation_id=self.operation_id,
            vouched=values if self.source.vouches else None,
        )
        return prepare(self.registry, request, remote=self.spec.remote)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a backfill would do."""

    title: str
    total: int | None
    """Items in all; None where the source does not know."""
    jobs: tuple[NewJob, ...]
    """The first jobs."""
    unusable: tuple[str, ...]
    """Why items among the first can't be made into jobs."""


@dataclass(frozen=True, slots=True)
class Backfills:
    """Starts backfills. The same checks for everybody who starts one."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    storage: Storage
    sources: Sources
    patience: float = PATIENCE
    """Seconds to wait for a turn to ask a source."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        modules: Iterable[str] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> Backfills:
        """With the sources of JOBS_MODULES and of `modules`. Raises InvalidBackfill."""
        sources = Sources.load([*settings.modules, *(modules or ())])
        storage = Storage(settings.files_url)
        return cls(settings, registry, ledger, storage, sources, patience)

    def open(self, spec: BackfillSpec, started_at: float) -> Source:
        """The source of a spec. Raises InvalidBackfill."""
        context = SourceContext(self.settings, self.ledger, self.storage, started_at, self.patience)
        return self.sources.open(spec.source, spec.options, context, remote=spec.remote)

    async def preview(self, spec: BackfillSpec, *, operation_id: str = "preview") -> Preview:
        """Read the first items and make their jobs, sending nothing.

        Raises InvalidBackfill, also when none of the first items can be made into a job, or there
        are none; SourceAway.
        """
        source = self.open(spec, time.time())
        plan = Plan.of(operation_id, spec, self.sources.get(spec.source), self.registry)
        if spec.until is not None and spec.until.timestamp() <= time.time():
            raise InvalidBackfill("its end lies in the past")
        jobs: list[NewJob] = []
        unusable: list[str] = []
        try:
            total = await source.total()
            async with aclosing(source.items(None)) as items:  # type: ignore[type-var]
                async for each in items:
                    _try(plan, each, jobs, unusable)
                    if len(jobs) + len(unusable) >= PEEK:
                        break
        except SourceFailed as error:
            raise InvalidBackfill(str(error)) from error
        except (SourceAway, InvalidBackfill, LedgerError):
            raise
        except Exception as error:
            if type(source).__module__ in BUILT_IN_MODULES:
                raise
            # It is not ours: whoever wrote it wants to know where it went wrong.
            raise InvalidBackfill(f"source {spec.source} raised {_where(error)}") from error
        if not jobs:
            why = f"none of its first items can be used: {unusable[0]}" if unusable else "no items"
            raise InvalidBackfill(f"{source.title}: {why}")
        return Preview(source.title, total, tuple(jobs), tuple(unusable))

    async def start(
        self,
        spec: BackfillSpec,
        *,
        created_by: str,
        reason: str | None = None,
        rate: float | None = None,
        max_open: int | None = None,
    ) -> BulkOperation:
        """Check and record a backfill; a scheduler runs it. Raises InvalidBackfill, SourceAway,
        LedgerUnavailable."""
        check_limits({"rate": rate, "max_open": max_open})
        preview = await self.preview(spec)
        return await self.ledger.create_bulk(
            new_bulk_id(KIND),
            kind=KIND,
            title=preview.title,
            spec=spec.model_dump(mode="json"),
            created_by=created_by,
            reason=reason,
            rate=rate,
            max_open=max_open,
            counts={"total": preview.total},
        )

    async def cancel(self, operation_id: str, *, jobs: bool) -> int:
        """End a backfill; with `jobs` also those of its jobs that have not begun, and what
        followed from them. Returns how many were cancelled. May be called again: what a crash
        left is then done. Raises UnknownBulkOperation, BulkConflict, LedgerUnavailable."""
        await cancel_bulk(self.ledger, operation_id, kind=KIND)
        if not jobs:
            return 0
        while await self._is_held(operation_id):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(LISTEN)
        cancelled = 0
        while ids := await self.ledger.bulk_jobs(operation_id, WAITING, limit=CANCELLED_AT_ONCE):
            now = time.time()
            answers = await asyncio.gather(*(self.ledger.cancel(each, now) for each in ids))
            cancelled += sum(isinstance(answer, Cancelled) for answer in answers)
        return cancelled

    async def _is_held(self, operation_id: str) -> bool:
        operation = await require_bulk(self.ledger, operation_id)
        return operation.holder is not None and (operation.lease_until or 0) > time.time()


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({PurePath(frame.filename).name}, line {frame.lineno})"


def check_limits(limits: Mapping[str, float | int | None]) -> None:
    """Raises InvalidBackfill for a rate or a number of open jobs that is not positive."""
    for name, value in limits.items():
        if value is None:
            continue
        if name == "rate" and 0 < value < LEAST_RATE:
            raise InvalidBackfill(f"rate must be at least {LEAST_RATE:g} a second")
        if not value > 0:
            raise InvalidBackfill(f"{name} must be more than 0; to stop publishing, pause it")
        if value > MOST[name]:
            raise InvalidBackfill(
                f"{name} must be at most {MOST[name]:,}; leave it out for no limit"
            )


def parse_spec(values: Mapping[str, Any]) -> BackfillSpec:
    """Raises InvalidBackfill, naming the fields."""
    try:
        return BackfillSpec.model_validate(values)
    except ValidationError as error:
        raise InvalidBackfill(describe(error)) from error


def job_or_reason(plan: Plan, item: Item | Unusable) -> NewJob | str:
    """The job of an item, or where and why there is none."""
    if isinstance(item, Unusable):
        return f"{item.where}: {item.why}"[:NOTE_LENGTH]
    try:
        return plan.job(item)
    except (InvalidJob, InvalidPayload, MissingField) as error:
        return f"{item.key}: {error}"[:NOTE_LENGTH]


def _try(plan: Plan, item: Item | Unusable, jobs: list[NewJob], unusable: list[str]) -> None:
    made = job_or_reason(plan, item)
    if isinstance(made, str):
        unusable.append(made)
    else:
        jobs.append(made)
