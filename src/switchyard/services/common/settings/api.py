"""Settings of the HTTP API and its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from switchyard.broker import patterns
from switchyard.services.common.settings.value_types import Listed


class ApiSettings(BaseSettings, defer_build=True):
    """HTTP API and its clients."""

    api_host: str = Field(
        default="127.0.0.1",
        description="Address that the HTTP API listens on. Requests from other machines need "
        "a key.",
    )
    api_port: int = Field(
        default=8000, ge=0, le=65535, description="Port of the HTTP API; 0 selects a free one."
    )
    api_tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain of the API: it then serves HTTPS. "
        "Without it, use a proxy for TLS if the network is not trusted.",
    )
    api_tls_key: Path | None = Field(
        default=None, description="PEM file with the private key of JOBS_API_TLS_CERT."
    )
    api_url: str = Field(
        default="http://127.0.0.1:8000",
        pattern=patterns.URL,
        description="Address of the HTTP API for its clients: `jobctl documents`, `jobctl "
        "search`, the Python client.",
    )
    api_key: SecretStr | None = Field(default=None, description="API key that these clients send.")
    api_keys: SecretStr | None = Field(
        default=None,
        description="Keys that the API accepts in addition to those of `jobctl keys`, "
        "comma-separated: KEY (all scopes), or KEY:read+publish.",
    )
    api_rate_limit: float = Field(
        default=500,
        gt=0,
        description="Requests per second of one key, or of one address without a key.",
    )
    api_rate_burst: int = Field(
        default=1000, ge=1, description="Requests that may exceed this rate in a burst."
    )
    api_max_body: int = Field(
        default=2 * 1024 * 1024,
        ge=1024,
        description="Maximum size of a request body without a file, in bytes.",
    )
    api_body_timeout: float = Field(
        default=30, gt=0, description="Seconds in which a request body without a file must arrive."
    )
    api_idle_timeout: float = Field(
        default=10, gt=0, description="Seconds without data after which an upload is aborted."
    )
    api_max_in_flight: int = Field(
        default=256 * 1024 * 1024,
        ge=1024,
        description="Memory of one API process for request bodies that are processed and answers "
        "that are sent, in bytes. Beyond it: 503. No client may hold more than is still free.",
    )
    api_trusted_proxies: Listed[str] = Field(
        default=(),
        description="Addresses or networks of proxies whose `X-Forwarded-For` and "
        "`X-Forwarded-Proto` are trusted, comma-separated. Default: none.",
    )
    api_max_streams: int = Field(
        default=200,
        ge=1,
        description="Maximum number of event streams and waiting requests per API process. No key "
        "may hold more than are still free.",
    )
    api_heartbeat: float = Field(
        default=15, gt=0, description="Seconds between keep-alive comments in an event stream."
    )
    pressure_slow_at: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Fraction of a queue's length limit from which its back-pressure state is "
        "slow.",
    )
    pressure_full_at: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Fraction of a queue's length limit from which its back-pressure state is "
        "full.",
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.api_tls_cert is None) != (self.api_tls_key is None):
            raise ValueError("JOBS_API_TLS_CERT and JOBS_API_TLS_KEY go together: set both")
        return self
