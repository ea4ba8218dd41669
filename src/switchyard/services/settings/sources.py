"""Where documents come from: arXiv, GitHub, Hugging Face, web pages, webhooks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings

from switchyard.services.settings.values import Hosts, OrUnset


class SourceSettings(BaseSettings):
    """Where documents come from: arXiv, GitHub, Hugging Face, web pages, webhooks."""

    arxiv_base_url: str = Field(
        default="https://export.arxiv.org/api/query",
        pattern="^https?://",
        description="Address of the arXiv API.",
    )
    arxiv_interval: float = Field(
        default=3.0,
        ge=0,
        le=3600,
        description="Least seconds between two requests to arXiv, all processes together; 3 is "
        "arXiv's own rule.",
    )
    github_base_url: str = Field(
        default="https://api.github.com",
        pattern="^https?://",
        description="Address of GitHub's REST API.",
    )
    github_token: OrUnset[SecretStr] = Field(
        default=None,
        description="A token for it; without one GitHub allows 60 requests an hour.",
    )
    github_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to GitHub, all processes together.",
    )
    github_webhook_secret: OrUnset[SecretStr] = Field(
        default=None,
        min_length=16,
        description="The secret of GitHub's webhooks, 16 characters or more, with which "
        "`POST /webhooks/github` takes them.",
    )
    webhooks: OrUnset[Path] = Field(
        default=None,
        description="A TOML file that says which other webhooks are taken, and what job each is "
        "(docs/webhooks.md).",
    )
    hf_base_url: str = Field(
        default="https://huggingface.co",
        pattern="^https?://",
        description="Address of the Hugging Face hub.",
    )
    hf_token: OrUnset[SecretStr] = Field(
        default=None, description="A token for the hub, for what is not for everybody."
    )
    hf_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to the hub, all processes together.",
    )
    web_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to one host for `ingest_url` and crawls, "
        "all processes together; more where its robots.txt asks for it.",
    )
    crawl_max_pages: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Pages that one crawl may have at most."
    )
    web_hosts: Hosts = Field(
        default=(),
        description="Hosts of your own network that web pages may be taken from, comma-separated: "
        "HOST:PORT; else only the open internet.",
    )
