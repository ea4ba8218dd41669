"""Specification of a backfill, and how its items become jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import NAMESPACE_URL, uuid5

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from switchyard.broker.lanes import BACKFILL, lane_named
from switchyard.broker.message import (
    FIRST_PAYLOAD_VERSION,
    MAX_PRIORITY,
    Moment,
    Tags,
    describe,
)
from switchyard.services.engine.backfill.sources import InvalidBackfill, Item, Source, Unusable
from switchyard.services.engine.backfill.template import Unfillable, render
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    JobType,
    Registry,
    UnknownJobType,
)
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.publishing.preparing import (
    InvalidJob,
    JobRequest,
    notice_of,
    prepare,
)
from switchyard.services.engine.records.bulk import MAX_WAITING, MAX_WEIGHT, notice_id_of
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.joins import Joining, WhenDead
from switchyard.services.engine.records.requests import NewJob

KIND = "backfill"
NOTE_LENGTH = 300
"""Characters of a note on an unusable item, at most."""

_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/backfills")
_THEN, _ITEM = "then", "item/"


class BackfillSpec(BaseModel):
    """Specification of a backfill: its source, and the job for each item."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    """Name of the source: arxiv, github, huggingface, file, documents, or one of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The source's options."""
    job_type: str | None = None
    """Job type for each item; the source's own job type where unset."""
    lane: str = BACKFILL.name
    payload: dict[str, Any] | None = None
    """Template of the payload, `{field}` where a value of the item goes; the item itself where
    unset."""
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    tags: Tags = Field(default_factory=dict)
    """Tags of each of its jobs."""
    low: int | None = Field(default=None, ge=0, le=MAX_WAITING)
    """Messages in a queue at or below which publishing resumes; half of `high` where unset."""
    high: int | None = Field(default=None, ge=1, le=MAX_WAITING)
    """Messages in a queue at which publishing waits; half of the queue's limit where unset."""
    weight: float = Field(default=1.0, ge=1 / MAX_WEIGHT, le=MAX_WEIGHT)
    """Its share of a queue that several backfills publish into, relative to the weights of the
    others."""
    until: Moment | None = None
    """Time after which nothing more is published."""
    then: str | None = Field(default=None, max_length=200)
    """Job type, or `<lane>.<job_type>`, of a job that is published when all its jobs, and all that
    followed from them, have ended."""
    then_payload: dict[str, Any] = Field(default_factory=dict)
    when_dead: WhenDead = "wait"
    """What happens to that job when some of the others are dead."""
    notify_url: str | None = None
    """Address that gets a notice when the backfill has ended, successfully or not."""
    payload_versions: dict[str, int] | None = None
    """Versions of its job types' payloads at its start, except first versions. Its payloads are
    written for these versions, also when a newer release continues it. None before its start."""
    remote: bool = True
    """Whether it was requested over HTTP: the rules for remote payloads and options also hold
    later, when a scheduler runs it."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError("the low watermark must be below the high one")
        return self

    def version_of(self, job_type: JobType) -> int | None:
        """Return the version of a type's payload that the spec was written for; None for the type's
        present version."""
        if self.payload_versions is None:
            return None
        return self.payload_versions.get(job_type.name, FIRST_PAYLOAD_VERSION)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> BackfillSpec:
        """Return a spec as it was recorded at its start. Raises InvalidBackfill."""
        return parse_spec({"payload_versions": {}, **values})

    def as_record(self, registry: Registry, job_type: JobType) -> dict[str, Any]:
        """Return the record of the spec at its start, with the payload versions that it was written
        for. First versions are left out, so that an older release can continue it."""
        types = [job_type]
        if self.then is not None:
            types.append(registry.get_publishable(self.then.rpartition(".")[2]))
        versions = {
            each.name: each.version for each in types if each.version != FIRST_PAYLOAD_VERSION
        }
        record = self.model_dump(mode="json", exclude={"payload_versions"})
        return record | ({"payload_versions": versions} if versions else {})


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan by which items become jobs."""

    operation_id: str
    spec: BackfillSpec
    job_type: JobType
    registry: Registry
    ids: JobIds
    source: type[Source]
    then: NewJob | None = None
    """Job that waits for all jobs of the backfill."""
    notice: NewJob | None = None
    """Job that sends the notice of the backfill's end."""

    @classmethod
    def from_spec(
        cls,
        operation_id: str,
        spec: BackfillSpec,
        source: type[Source],
        registry: Registry,
        ids: JobIds,
    ) -> Plan:
        """Make the plan of a spec. Raises InvalidBackfill for an unsuitable job type or lane."""
        name = spec.job_type or source.job_type
        if name is None:
            raise InvalidBackfill(f"source {source.name} needs a job type: name one with --type")
        try:
            job_type = registry.get_publishable(name)
            lane_named(spec.lane)
        except (UnknownJobType, ValueError) as error:
            raise InvalidBackfill(str(error)) from error
        if spec.lane not in job_type.lanes:
            raise InvalidBackfill(
                f"{name} is not worked in lane {spec.lane}: use {' or '.join(job_type.lanes)}"
            )
        then = _make_then(operation_id, spec, source, registry, ids)
        notice = _make_notice(operation_id, spec, registry, ids)
        return cls(operation_id, spec, job_type, registry, ids, source, then, notice)

    @property
    def asks_models(self) -> bool:
        """Whether its own jobs run in the LLM worker."""
        return self.job_type.worker == LLM_WORKER

    def job(self, item: Item) -> NewJob:
        """Make the job of an item; its id is the same each time.

        Raises InvalidJob, InvalidPayload, Unfillable: the item can't be made into a job.
        """
        template, values = self.spec.payload, item.values
        request = JobRequest(
            routing_key=f"{self.spec.lane}.{self.job_type.name}",
            payload=values if template is None else render(template, values),
            priority=self.spec.priority,
            max_attempts=self.spec.max_attempts,
            source=item.source or self.source.name,
            # Without a template, the payload is made by the present source.
            payload_version=None if template is None else self.spec.version_of(self.job_type),
            job_id=item_job_id(self.ids, self.operation_id, item.key),
            operation_id=self.operation_id,
            tags=self.spec.tags,
            vouched=values if self.source.vouches else None,
        )
        job = prepare(self.registry, request, remote=self.spec.remote)
        return job if self.then is None else replace(job, join_id=self.then.message.job_id)


def item_job_id(ids: JobIds, operation_id: str, key: str) -> str:
    """Return the id of an item's job. No key results in the id of the job that follows the
    backfill."""
    if key == _THEN or key.startswith(_ITEM):
        key = f"{_ITEM}{key}"
    return ids.derive(_NAMESPACE, f"{operation_id}/{key}")


def then_id_of(ids: JobIds, operation_id: str) -> str:
    """Return the id of the job that follows a backfill's end."""
    return ids.derive(_NAMESPACE, f"{operation_id}/{_THEN}")


def _make_then(
    operation_id: str, spec: BackfillSpec, source: type[Source], registry: Registry, ids: JobIds
) -> NewJob | None:
    """Make the job that follows the backfill; it is held until all others are published. Raises
    InvalidBackfill."""
    if spec.then is None:
        if spec.then_payload:
            raise InvalidBackfill("then_payload without then: name the job type that it is for")
        return None
    try:
        lanes = () if "." in spec.then else registry.get_publishable(spec.then).lanes
        lane = spec.lane if spec.lane in lanes else next(iter(lanes), "")
        request = JobRequest(
            routing_key=f"{lane}.{spec.then}" if lane else spec.then,
            payload=spec.then_payload,
            payload_version=spec.version_of(registry.get_publishable(spec.then.rpartition(".")[2])),
            source=source.name,
            job_id=then_id_of(ids, operation_id),
            tags=spec.tags,
        )
        job = prepare(registry, request, remote=spec.remote)
    except (UnknownJobType, InvalidJob, InvalidPayload) as error:
        raise InvalidBackfill(f"then: {error}") from error
    return replace(job, joins=Joining(spec.when_dead, held=True))


def _make_notice(
    operation_id: str, spec: BackfillSpec, registry: Registry, ids: JobIds
) -> NewJob | None:
    """Make the job that sends the notice of the end. Raises InvalidBackfill."""
    if spec.notify_url is None:
        return None
    try:
        notice = notice_of(registry, spec.notify_url, backfill_id=operation_id)
    except (UnknownJobType, InvalidJob) as error:
        raise InvalidBackfill(str(error)) from error
    message = notice.message.model_copy(update={"job_id": notice_id_of(ids, operation_id)})
    return replace(notice, message=message, joins=Joining("go_on", held=True, again=True))


def parse_spec(values: Mapping[str, Any]) -> BackfillSpec:
    """Parse a spec. Raises InvalidBackfill, which names the invalid fields."""
    try:
        return BackfillSpec.model_validate(values)
    except ValidationError as error:
        raise InvalidBackfill(describe(error)) from error


def job_or_reason(plan: Plan, item: Item | Unusable) -> NewJob | str:
    """Return the job of an item, or a text that says where and why there is none."""
    if isinstance(item, Unusable):
        return f"{item.where}: {item.why}"[:NOTE_LENGTH]
    try:
        return plan.job(item)
    except (InvalidJob, InvalidPayload, Unfillable) as error:
        return f"{item.key}: {error}"[:NOTE_LENGTH]
