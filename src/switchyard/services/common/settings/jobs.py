"""Job types, schedules, limits and fairness; alerts and notices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.broker.lanes import LANES
from switchyard.services.common.durations import DAY
from switchyard.services.common.settings.value_types import Age, AgesByName, Hosts, Listed, OrOff


class LimitOverride(BaseModel):
    """Numbers that replace those of a named limit; null removes the limit that the code
    declares."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    per_minute: int | None = Field(default=None, ge=1, le=100_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=1_000_000_000_000)

    def overrides(self) -> dict[str, int | None]:
        """Return the limits that are set, also those set to null."""
        numbers = ("concurrency", "per_minute", "tokens_per_minute")
        return {each: getattr(self, each) for each in numbers if each in self.model_fields_set}


class KeyedLimitOverride(LimitOverride):
    """The value of JOBS_LIMITS for one limit."""

    keys: dict[str, LimitOverride] = {}
    """Limits of single keys, by key."""


class JobSettings(BaseSettings, defer_build=True):
    """Job types, schedules and limits."""

    modules: Listed[str] = Field(
        default=(),
        description="Python modules with your own job types, comma-separated. Workers need "
        "them; other processes know the types from the ledger (docs/python.md).",
    )
    schedules: Path | None = Field(
        default=None,
        description="TOML file with schedules (docs/schedules.md). The active scheduler reads "
        "it when it starts.",
    )
    default_schedules: bool = Field(
        default=True,
        description="Whether the built-in nightly maintenance jobs are published "
        "(docs/schedules.md).",
    )
    limits: dict[str, KeyedLimitOverride] = Field(
        default={},
        description='Overrides named limits of the code, as a JSON object: `{"openai": '
        '{"concurrency": 10, "per_minute": null, "keys": {"acme": {"concurrency": '
        "2}}}}` (docs/limits.md). `null` removes a limit.",
    )
    max_result_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1024,
        le=1024 * 1024 * 1024,
        description="Maximum size of a job's result in bytes, as JSON. A job with a larger one "
        "is dead (`InvalidOutcome`).",
    )
    fair_from: OrOff[int] = Field(
        default=500,
        ge=1,
        le=10_000_000,
        description="Fairness between sources: when a source has this many unfinished jobs in "
        "a lane, its further jobs get a lower priority there. `off`: never.",
    )


def _check_lanes(value: dict[str, float | None]) -> dict[str, float | None]:
    names = [lane.name for lane in LANES]
    if unknown := [name for name in value if name not in names]:
        raise ValueError(f"{unknown[0]!r} is no lane: these are {', '.join(names)}")
    return value


class RetentionSettings(BaseSettings, defer_build=True):
    """For how long ended jobs are kept."""

    keep_succeeded: Age = Field(
        default=90 * DAY,
        description="How long succeeded jobs are kept, since their end, such as `30d` or `12h`; "
        "`off`: for ever. A job's attempts and its letter are removed with it (docs/retention.md).",
    )
    keep_cancelled: Age = Field(default=90 * DAY, description="The same for cancelled jobs.")
    keep_dead: Age = Field(
        default=365 * DAY,
        description="The same for dead jobs whose letter is not in `jobs.dead` any more, and for "
        "letters without a job.",
    )
    keep_lanes: Annotated[AgesByName, AfterValidator(_check_lanes)] = Field(
        default={},
        description="The same for succeeded and cancelled jobs of single lanes, as "
        "comma-separated LANE=AGE: `hot=30d,backfill=7d`.",
    )
    keep_types: AgesByName = Field(
        default={},
        description="The same for succeeded and cancelled jobs of single types, whatever their "
        "lane, as comma-separated JOB_TYPE=AGE: `fetch_page=7d,summarize_content=off`.",
    )
    keep_operations: Age = Field(
        default=365 * DAY,
        description="How long ended backfills, redrives and purges are kept, with the list of "
        "what a redrive sent.",
    )
    archive_jobs: bool = Field(
        default=False,
        description="Before ended jobs are removed for their age, write them and their attempts "
        "into Parquet files in the storage. Needs the extra `archive`, where the scheduler runs "
        "(docs/retention.md#archive).",
    )
    keep_archive: Age = Field(
        default=None,
        description="How long files of the archive are kept, since they were written; `off`, the "
        "default: until somebody deletes them.",
    )
    keep_openai_files: Age = Field(
        default=30 * DAY,
        description="How long files of the OpenAI-compatible API are kept, and ended batches "
        "(docs/openai.md).",
    )


class NoticeSettings(BaseSettings, defer_build=True):
    """Alerts and notices."""

    alert_webhook: SecretStr | None = Field(
        default=None,
        description="Address to which the scheduler posts alerts: when a finding of the "
        "doctor appears or disappears, and when a backfill or redrive ends. "
        "Default: no alerts.",
    )
    alert_format: Literal["json", "slack"] = Field(
        default="json", description="Format of alerts; `slack` for Slack and compatible services."
    )
    alert_secret: SecretStr | None = Field(default=None, description="Secret that signs alerts.")
    alert_interval: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds between checks for alerts."
    )
    notify_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret that signs posts to a `notify_url`, at least 16 characters. "
        "Without it, jobs with a `notify_url` are refused (docs/notices.md).",
    )
    notify_hosts: Hosts = Field(
        default=(),
        description="Internal hosts that a `notify_url` may name, comma-separated HOST:PORT. "
        "Default: only public addresses.",
    )
