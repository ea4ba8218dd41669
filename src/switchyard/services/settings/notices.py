"""Alerts and notices: who is told, and how."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.services.settings.values import Hosts, OrUnset


class NoticeSettings(BaseSettings):
    """Alerts and notices: who is told, and how."""

    alert_webhook: OrUnset[SecretStr] = Field(
        default=None,
        description="Address that the scheduler posts to when the doctor finds something, when it "
        "is over, and when a backfill or redrive ends. None: nobody is told.",
    )
    alert_format: Literal["json", "slack"] = Field(
        default="json", description="`slack` is for Slack and what understands its messages."
    )
    alert_secret: OrUnset[SecretStr] = Field(
        default=None, description="Signs what is posted to JOBS_ALERT_WEBHOOK."
    )
    alert_interval: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds between looks for what is to be told."
    )
    notify_secret: OrUnset[SecretStr] = Field(
        default=None,
        min_length=16,
        description="Signs what is posted to a `notify_url`, 16 characters or more; without it no "
        "job may name one (docs/notices.md).",
    )
    notify_hosts: Hosts = Field(
        default=(),
        description="Hosts of your own network that a `notify_url` may name, comma-separated: "
        "HOST:PORT; else only the open internet.",
    )
