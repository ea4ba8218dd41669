"""The HTTP API and its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from switchyard.services.settings.values import Listed, OrUnset


class ApiSettings(BaseSettings):
    """The HTTP API and its clients."""

    api_host: str = Field(
        default="127.0.0.1",
        description="Address that the HTTP API listens on; beyond loopback it needs a key.",
    )
    api_port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP API.")
    api_tls_cert: OrUnset[Path] = Field(
        default=None,
        description="File with the API's certificate and what signed it (PEM): it speaks HTTPS "
        "then. None: HTTP, with a proxy before it where others may listen.",
    )
    api_tls_key: OrUnset[Path] = Field(
        default=None, description="File with the private key of JOBS_API_TLS_CERT (PEM)."
    )
    api_url: str = Field(
        default="http://127.0.0.1:8000",
        pattern="^https?://",
        description="Address of the HTTP API for those who call it: `jobctl documents`, "
        "`jobctl search`, the Python client.",
    )
    api_key: SecretStr | None = Field(default=None, description="The key that they send.")
    api_keys: SecretStr | None = Field(
        default=None,
        description="Keys of the HTTP API beside those of `jobctl keys`, comma-separated: KEY, or "
        "KEY:read+publish for some scopes only.",
    )
    api_rate_limit: float = Field(
        default=500, gt=0, description="Requests a second that one key, or one address, may make."
    )
    api_rate_burst: int = Field(
        default=1000, ge=1, description="Requests that it may make at once."
    )
    api_max_body: int = Field(
        default=2 * 1024 * 1024, ge=1024, description="Bytes of a request without a file."
    )
    api_body_timeout: float = Field(
        default=30, gt=0, description="Seconds in which a request without a file must be sent."
    )
    api_idle_timeout: float = Field(
        default=10, gt=0, description="Seconds without a byte after which a sender is given up."
    )
    api_trusted_proxies: Listed[str] = Field(
        default=(),
        description="Addresses or networks of proxies, comma-separated, whose `X-Forwarded-For` "
        "and `X-Forwarded-Proto` are believed; nobody's where unset.",
    )
    api_max_streams: int = Field(
        default=200, ge=1, description="Clients that one API process sends events to."
    )
    api_heartbeat: float = Field(
        default=15, gt=0, description="Seconds between signs of life in a stream of events."
    )
    pressure_slow_at: float = Field(
        default=0.5, gt=0, le=1, description="Part of a queue's limit from which it is slow."
    )
    pressure_full_at: float = Field(
        default=1.0, gt=0, le=1, description="Part of a queue's limit from which it is full."
    )

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.api_tls_cert is None) != (self.api_tls_key is None):
            raise ValueError("JOBS_API_TLS_CERT and JOBS_API_TLS_KEY go together: set both")
        return self
