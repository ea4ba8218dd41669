"""Workers, and what all processes log and show."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class ProcessSettings(BaseSettings):
    """Workers, and what all processes log and show."""

    worker_concurrency: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Jobs that one kind of worker runs at once; the LLM worker, as many as its "
        "servers get.",
    )
    worker_reserve: int | None = Field(
        default=None,
        ge=0,
        description="Slots that only the worker's most urgent lane may use; 1 where unset and "
        "there are two slots or more.",
    )
    autoscale_wait: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that the oldest job of a kind may wait before `jobctl up --autoscale` "
        "starts one more process of it.",
    )
    autoscale_calm: float = Field(
        default=60.0,
        gt=0,
        description="Seconds for which one process less would have done before it retires one.",
    )
    shutdown_grace: float = Field(
        default=30, ge=0, description="Seconds that running jobs get to finish after SIGTERM."
    )
    takeover_after: float = Field(
        default=1.5,
        gt=0,
        description="Seconds without a sign of life after which a job is taken from its worker.",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address on which `jobctl worker` and `jobctl scheduler` show their metrics; "
        "they ask for no key.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of these metrics; none are shown where unset.",
    )
    log_format: str = Field(
        default="auto",
        pattern="^(auto|json|console)$",
        description="`json`, `console`, or `auto`: console on a terminal, JSON elsewhere.",
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="Least level logged."
    )
