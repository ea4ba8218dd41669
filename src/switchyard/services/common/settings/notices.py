"""Alerts and notices: who is told, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.services.common.settings.values import Hosts


class NoticeSettings(BaseSettings):
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
