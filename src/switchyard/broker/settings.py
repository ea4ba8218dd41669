"""Where the broker is and how it is used, from `JOBS_…` environment variables."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from switchyard.broker.lanes import RETRY_DELAYS

Profile = Literal["classic", "quorum"]
DEFAULT_MANAGEMENT_PORT = 15672


class BrokerSettings(BaseSettings):
    """Settings of this package. Every field is the environment variable `JOBS_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix="JOBS_",
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,  # it may be a secret
    )

    amqp_url: SecretStr | None = Field(
        default=None,
        description="AMQP address of the broker, with user, password and vhost.",
    )
    management_url: SecretStr | None = Field(
        default=None,
        description="Address of the management HTTP API; from the AMQP address where unset.",
    )
    profile: Profile = Field(
        default="classic",
        description="How lanes are rendered: `classic` (RabbitMQ 3.10 and later, one node) or "
        "`quorum` (4.3 and later, clusters).",
    )
    retry_delays: Annotated[tuple[float, ...], NoDecode] = Field(
        default=RETRY_DELAYS,
        description="Retry levels in seconds, comma-separated, ascending; one queue each.",
    )
    publish_window: int = Field(
        default=500, ge=1, description="Publishes that may wait for their confirm at once."
    )
    confirm_timeout: float = Field(
        default=30, gt=0, description="Seconds to wait for a publisher confirm."
    )

    @field_validator("retry_delays", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(float(part) for part in value.split(",") if part.strip())
        return value

    @field_validator("retry_delays")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or value[0] <= 0 or list(value) != sorted(set(value)):
            raise ValueError("name at least one delay, in seconds, positive and ascending")
        return value

    def require_amqp_url(self) -> str:
        """The AMQP address. Raises ValueError when none is set."""
        if self.amqp_url is None:
            raise ValueError(
                "no broker: set JOBS_AMQP_URL, for example amqp://user:password@localhost:5672/"
            )
        return self.amqp_url.get_secret_value()

    def require_management_url(self) -> str:
        """The management address with credentials; made from the AMQP address where unset.

        Raises ValueError when neither is set.
        """
        amqp = urlsplit(self.require_amqp_url()) if self.amqp_url is not None else None
        if self.management_url is None:
            if amqp is None:
                raise ValueError("no management API: set JOBS_MANAGEMENT_URL or JOBS_AMQP_URL")
            scheme = "https" if amqp.scheme == "amqps" else "http"
            user = f"{amqp.username or 'guest'}:{amqp.password or 'guest'}"
            host = f"[{amqp.hostname}]" if ":" in (amqp.hostname or "") else amqp.hostname
            return f"{scheme}://{user}@{host or 'localhost'}:{DEFAULT_MANAGEMENT_PORT}"
        url = self.management_url.get_secret_value().rstrip("/")
        parts = urlsplit(url)
        if parts.username is None and amqp is not None and amqp.username is not None:
            user = f"{amqp.username}:{amqp.password or ''}"
            return parts._replace(netloc=f"{user}@{parts.netloc}").geturl()
        return url

    @property
    def vhost(self) -> str:
        """The virtual host of the AMQP address, `/` where it names none."""
        path = urlsplit(self.require_amqp_url()).path
        if path in ("", "/"):
            return "/"
        return unquote(path[1:])


def with_vhost(amqp_url: str, vhost: str) -> str:
    """The same broker, another virtual host."""
    return urlsplit(amqp_url)._replace(path="/" + quote(vhost, safe="")).geturl()
