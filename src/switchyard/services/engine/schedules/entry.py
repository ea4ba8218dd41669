"""An entry of the schedules: its times, and the job that is published at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from switchyard.broker import patterns
from switchyard.broker.message import MAX_PAYLOAD_VERSION, MAX_PRIORITY, Tags, describe
from switchyard.services.common.durations import DAY
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, UnknownJobType
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest, prepare
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.schedules import ScheduleRecord
from switchyard.services.engine.schedules.rule import CronRule, InvalidSchedule, with_jitter


class ScheduleEntry(BaseModel):
    """An entry as it is written in the file, a command or a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=patterns.DASHED_NAME)
    cron: str = Field(min_length=1, max_length=200)
    """Minute, hour, day of the month, month, day of the week; six fields begin with seconds."""
    timezone: str = Field(default="UTC", pattern=patterns.TIME_ZONE)
    job: str
    """Routing key: `<lane>.<job_type>`."""
    payload: dict[str, Any] = Field(default_factory=dict)
    priority: int | None = Field(default=None, ge=0, le=MAX_PRIORITY)
    max_attempts: int | None = Field(default=None, ge=1, le=1000)
    tags: Tags = Field(default_factory=dict)
    """Tags of its jobs, and of those that follow from them."""
    payload_version: int | None = Field(default=None, ge=1, le=MAX_PAYLOAD_VERSION)
    """Version of the payload; None: the present one."""
    jitter: float = Field(default=0.0, ge=0, le=3600.0)
    """Seconds by which a firing is delayed, at most."""
    grace: float = Field(default=3600.0, ge=0, le=DAY)
    """Seconds for which a due time that has passed is still worth firing."""

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Validate the fields of an entry. Raises InvalidSchedule."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InvalidSchedule(describe(error)) from error

    @classmethod
    def from_record(cls, record: ScheduleRecord) -> ScheduleEntry:
        """Return the entry that the record was made from."""
        shared = {name: getattr(record, name) for name in cls.model_fields if name != "job"}
        shared |= {"payload": dict(record.payload), "tags": dict(record.tags)}
        return cls.model_construct(job=record.routing_key, **shared)

    def rule(self) -> CronRule:
        """Return the rule of its times. Raises InvalidSchedule."""
        return CronRule.parse(self.cron, self.timezone)

    def prepare_job(self, registry: Registry, *, remote: bool, job_id: str | None = None) -> NewJob:
        """Return the job that it publishes, checked like any other job. Raises InvalidJob,
        UnknownJobType, InvalidPayload."""
        request = JobRequest(
            self.job,
            self.payload,
            priority=self.priority,
            max_attempts=self.max_attempts,
            tags=self.tags,
            payload_version=self.payload_version,
            source=f"schedule {self.name}",
            job_id=job_id,
        )
        return prepare(registry, request, remote=remote)

    def check(self, registry: Registry, *, remote: bool) -> None:
        """Check that it is due at some time, and that its job could be published. Raises
        InvalidSchedule."""
        self.rule()
        try:
            self.prepare_job(registry, remote=remote)
        except (InvalidJob, UnknownJobType) as error:
            raise InvalidSchedule(str(error), at="job") from error
        except InvalidPayload as error:
            raise InvalidSchedule(str(error), at="payload") from error

    def record(self, now: float, *, origin: str, remote: bool, created_by: str) -> ScheduleRecord:
        """Return the ledger's record of the entry, due for the first time after `now`."""
        due = self.rule().after(now)
        return ScheduleRecord(
            **self.model_dump(exclude={"job"}),
            routing_key=self.job,
            origin=origin,
            remote=remote,
            created_by=created_by,
            created_at=now,
            paused_at=None,
            next_at=due,
            fire_at=with_jitter(self.name, due, self.jitter),
        )
