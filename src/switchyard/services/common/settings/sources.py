"""Settings of document sources: arXiv, GitHub, Hugging Face, web pages, webhooks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.broker import patterns
from switchyard.services.common.settings.value_types import Hosts, OrOff


class SourceSettings(BaseSettings, defer_build=True):
    """Sources of documents and webhooks."""

    arxiv_base_url: str = Field(
        default="https://export.arxiv.org/api/query",
        pattern=patterns.URL,
        description="Address of the arXiv API.",
    )
    arxiv_interval: float = Field(
        default=3.0,
        ge=0,
        le=3600,
        description="Minimum seconds between two requests to arXiv, of all processes "
        "together. arXiv's rules require 3.",
    )
    github_base_url: str = Field(
        default="https://api.github.com",
        pattern=patterns.URL,
        description="Address of GitHub's REST API.",
    )
    github_token: SecretStr | None = Field(
        default=None,
        description="Token for GitHub's API. Without one, GitHub allows 60 requests per hour.",
    )
    github_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Minimum seconds between two requests to GitHub, of all processes together.",
    )
    github_webhook_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret of GitHub's webhooks, at least 16 characters. Enables `POST "
        "/webhooks/github`.",
    )
    webhooks: Path | None = Field(
        default=None,
        description="TOML file with other webhooks and the job that each publishes "
        "(docs/webhooks.md).",
    )
    hf_base_url: str = Field(
        default="https://huggingface.co",
        pattern=patterns.URL,
        description="Address of the Hugging Face hub.",
    )
    hf_token: SecretStr | None = Field(
        default=None, description="Token for the hub, for private and gated repositories."
    )
    hf_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Minimum seconds between two requests to the hub, of all processes together.",
    )
    web_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Minimum seconds between two requests to the same host for `ingest_url` "
        "and crawls, of all processes together. A longer `Crawl-delay` in its "
        "robots.txt is respected.",
    )
    crawl_max_pages: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Maximum number of pages of a crawl."
    )
    crawls_kept_days: OrOff[int] = Field(
        default=90,
        ge=1,
        le=36_500,
        description="Days after its start at which `cleanup_expired` deletes a finished crawl and "
        "the list of its pages. `off`: never.",
    )
    web_hosts: Hosts = Field(
        default=(),
        description="Internal hosts from which web pages may be fetched, comma-separated "
        "HOST:PORT. Default: only public addresses.",
    )
