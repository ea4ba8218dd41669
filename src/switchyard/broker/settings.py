"""Where the broker is and how it is used, from `JOBS_…` environment variables."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from switchyard.broker.addresses import AMQP_PORTS, check_address, nodes_of, vhost_of, with_login
from switchyard.broker.lanes import RETRY_DELAYS

Profile = Literal["classic", "quorum"]
DEFAULT_MANAGEMENT_PORT = 15672
AMQP_EXAMPLE = "amqp://user:password@host:5672/vhost"
MANAGEMENT_EXAMPLE = "http://user:password@host:15672"


class SetVariablesSource(EnvSettingsSource):
    """Reads environment variables only for the fields that they set. Inspecting all 120 fields by
    type, as pydantic does by itself, took most of the time that settings take."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if f"{self.env_prefix}{field_name}".lower() in self.env_vars:
            return super().get_field_value(field, field_name)
        return None, field_name, True

    def prepare_field_value(
        self, field_name: str, field: FieldInfo, value: Any, value_is_complex: bool
    ) -> Any:
        if value is None:
            return None
        return super().prepare_field_value(field_name, field, value, value_is_complex)


class BrokerSettings(BaseSettings):
    # The first line is a heading in docs/settings.md.
    """Broker.

    Every field is the environment variable `JOBS_<FIELD>`.
    """

    model_config = SettingsConfigDict(
        env_prefix="JOBS_",
        extra="ignore",
        frozen=True,
        # For every settings class: an empty variable, as from `${NAME:-}` in a compose file,
        # counts as unset.
        env_ignore_empty=True,
        hide_input_in_errors=True,  # it may be a secret
        defer_build=True,  # a process seldom uses all classes of settings
    )

    amqp_url: SecretStr | None = Field(
        default=None,
        description="AMQP address of the broker, with user, password and vhost. For a "
        "cluster, give all hosts: amqp://user:password@a:5672,b:5672/vhost "
        "(docs/cluster.md).",
    )
    management_url: SecretStr | None = Field(
        default=None,
        description="Address of RabbitMQ's management HTTP API; for a cluster, with all "
        "hosts. Default: derived from JOBS_AMQP_URL.",
    )
    rabbitmqctl: str = Field(
        default="rabbitmqctl",
        description="Command that runs `rabbitmqctl` on the broker, as `jobctl doctor` prints it; "
        "for example `docker compose exec rabbitmq rabbitmqctl`.",
    )
    profile: Profile = Field(
        default="classic",
        description="Type of the lane and dead-letter queues: `classic` (RabbitMQ 3.10 or later, "
        "one node) or `quorum` (4.3 or later, clusters). Must be the same in all processes.",
    )
    retry_delays: Annotated[tuple[float, ...], NoDecode] = Field(
        default=RETRY_DELAYS,
        description="Delays between attempts in seconds, comma-separated, ascending. Each "
        "delay is a queue on the broker: run `jobctl topology apply` after a "
        "change. Other waits, such as a `Retry-After`, are made up of several.",
    )
    publish_window: int = Field(
        default=500, ge=1, description="Maximum number of unconfirmed publishes per process."
    )
    max_message_size: int | None = Field(
        default=None,
        ge=4096,
        le=1024 * 1024,
        description="Maximum size of a job's message in bytes; larger jobs are refused at once. "
        "Set it if the broker's `max_message_size` is less than 1 MiB. Must be the same in all "
        "processes. Default: 1 MiB, the most that a worker reads; a broker takes 16 MiB (before "
        "4.0: 128 MiB) unless its configuration says less.",
    )
    confirm_timeout: float = Field(
        default=30, gt=0, description="Seconds to wait for the broker to confirm a publish."
    )

    publisher_password: SecretStr | None = Field(
        default=None,
        description="Password that `jobctl topology users` sets for the broker user of publishers. "
        "Default: a random one. Only this command reads it.",
    )
    worker_password: SecretStr | None = Field(
        default=None, description="The same for the broker user of workers."
    )
    admin_password: SecretStr | None = Field(
        default=None, description="The same for the broker user of schedulers and operators."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in order: arguments, then the environment. Files are left out: no
        setting comes from one, and looking for each field in absent files doubles the time."""
        return init_settings, SetVariablesSource(settings_cls)

    @field_validator("amqp_url")
    @classmethod
    def _check_amqp_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_address(value.get_secret_value(), tuple(AMQP_PORTS), AMQP_EXAMPLE)
        return value

    @field_validator("management_url")
    @classmethod
    def _check_management_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_address(value.get_secret_value(), ("http", "https"), MANAGEMENT_EXAMPLE)
        return value

    @field_validator("retry_delays", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(float(part) for part in value.split(",") if part.strip())
        return value

    @field_validator("retry_delays")
    @classmethod
    def _check_ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or value[0] <= 0 or list(value) != sorted(set(value)):
            raise ValueError("name at least one delay, in seconds, positive and ascending")
        return value

    def require_amqp_url(self) -> str:
        """Return the AMQP address. Raises ValueError when none is set."""
        if self.amqp_url is None:
            raise ValueError(
                "no broker: set JOBS_AMQP_URL, for example amqp://user:password@localhost:5672/"
            )
        return self.amqp_url.get_secret_value()

    def require_management_url(self) -> str:
        """Return the management address with credentials, of each node; made from the AMQP address
        where unset. Raises ValueError when neither is set.
        """
        amqp = self._amqp_nodes()
        if self.management_url is None:
            if not amqp:
                raise ValueError("no management API: set JOBS_MANAGEMENT_URL or JOBS_AMQP_URL")
            return ",".join(_management_url_of(node) for node in amqp)
        url = self.management_url.get_secret_value().rstrip("/")
        if urlsplit(nodes_of(url)[0]).username is None and amqp and amqp[0].username is not None:
            return with_login(url, f"{amqp[0].username}:{amqp[0].password or ''}")
        return url

    @property
    def role_passwords(self) -> dict[str, str]:
        """The configured passwords of the broker's users, by role."""
        by_role = {
            "publisher": self.publisher_password,
            "worker": self.worker_password,
            "admin": self.admin_password,
        }
        return {role: each.get_secret_value() for role, each in by_role.items() if each}

    @property
    def vhost(self) -> str:
        """The virtual host in the AMQP address; `/` where it names none."""
        return vhost_of(self.require_amqp_url())

    def _amqp_nodes(self) -> list[SplitResult]:
        if self.amqp_url is None:
            return []
        return [urlsplit(node) for node in nodes_of(self.require_amqp_url())]


def _management_url_of(node: SplitResult) -> str:
    scheme = "https" if node.scheme == "amqps" else "http"
    user = f"{node.username or 'guest'}:{node.password or 'guest'}"
    host = f"[{node.hostname}]" if ":" in (node.hostname or "") else node.hostname
    return f"{scheme}://{user}@{host or 'localhost'}:{DEFAULT_MANAGEMENT_PORT}"
