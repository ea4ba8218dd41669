"""Settings of workers, and of the logs and metrics of all processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings


class ProcessSettings(BaseSettings, defer_build=True):
    """Processes: concurrency, metrics and logs."""

    worker_concurrency: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Jobs that a worker process runs at the same time, per kind. A worker "
        "`llm` with a server runs at least JOBS_LLM_CONCURRENCY_MAX.",
    )
    worker_reserve: int | None = Field(
        default=None,
        ge=0,
        description="Slots of a worker process that only the lane with the highest priority may "
        "use. Default: 1, or 0 if there is only one slot.",
    )
    autoscale_wait: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that the oldest job of a kind may wait before `jobctl up "
        "--autoscale` starts another process.",
    )
    autoscale_calm: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that one process fewer would have been enough before `jobctl up "
        "--autoscale` stops one.",
    )
    shutdown_grace: float = Field(
        default=30, ge=0, description="Seconds that running jobs have to finish after SIGTERM."
    )
    takeover_after: float = Field(
        default=1.5,
        gt=0,
        description="Seconds without a heartbeat after which other workers take over the jobs "
        "of a worker. A worker with jobs sends four in that time, an idle one sends one every "
        "three seconds. Raise it on overloaded hosts.",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address on which `jobctl worker` and `jobctl scheduler` serve metrics "
        "and health checks, without authentication.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port for metrics and health checks; 0 selects a free one. Default: none "
        "are served.",
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="Format of logs: `json`, `console`, or `auto` (console on a terminal, "
        "JSON otherwise).",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Minimum level of log entries.",
    )
