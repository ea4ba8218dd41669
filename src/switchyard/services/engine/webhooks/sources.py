"""Webhooks of other systems than GitHub: the file of JOBS_WEBHOOKS has the secret of each, and the
job that its deliveries ask for (docs/webhooks.md).

    [shop]
    secret = "SHOP_WEBHOOK_SECRET"       # the name of an environment variable
    routing_key = "hot.ingest_url"
    payload = { url = "{product.page}" }
    when = { event = ["published", "changed"] }
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError

from switchyard.broker import patterns
from switchyard.broker.message import Tags, describe
from switchyard.services.common.errors import Misconfigured
from switchyard.services.common.settings import Settings
from switchyard.services.common.toml_file import InvalidToml, read_toml
from switchyard.services.engine.backfill.template import MissingField, Unfillable, render
from switchyard.services.engine.jobs.registry import Registry, UnknownJobType
from switchyard.services.engine.webhooks.deliveries import (
    DeliveryJob,
    Ignored,
    InvalidDelivery,
    delivery_key,
    parse,
)

_Header = Annotated[str, StringConstraints(pattern=patterns.HEADER)]


class InvalidWebhooks(Misconfigured):
    """The file of JOBS_WEBHOOKS can't be used; the text says what to change."""


class WebhookSource(BaseModel):
    """A system that sends webhooks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    secret: str = Field(pattern=patterns.ENVIRONMENT_VARIABLE)
    """The environment variable that has the secret."""
    routing_key: str = Field(pattern=patterns.WEBHOOK_KEY)
    payload: dict[str, Any] = Field(default_factory=dict)
    """Template of the job's payload: `{a.b}` is field `b` of `a` in the delivery."""
    when: dict[str, list[str | int | bool]] = Field(default_factory=dict)
    """Allowed values of fields of the delivery. Deliveries with other values are ignored."""
    tags: Tags = Field(default_factory=dict)
    """Tags of the job, and of all jobs that follow from it."""
    signature: _Header = "X-Hub-Signature-256"
    """The header with the signature."""
    prefix: str = Field(default="sha256=", max_length=50)
    """Prefix of the signature's hexadecimal digits."""
    delivery: _Header | None = None
    """The header with the delivery's id, which is not signed; None: the same bytes are the same
    delivery."""

    def job(self, name: str, body: bytes, delivery_id: str | None) -> DeliveryJob | Ignored:
        """Return the job that a delivery asks for. Raises InvalidDelivery."""
        event = parse(body)
        for field, values in self.when.items():
            try:
                value = render(f"{{{field}}}", event)
            except MissingField:
                return Ignored(f"it has no {field}")
            if not any(_is_same(value, each) for each in values):
                return Ignored(f"{field} is another")
        try:
            payload = render(self.payload, event)
        except Unfillable as error:
            raise InvalidDelivery(str(error)) from error
        # An empty header counts as none: it would be the id of all deliveries.
        key = delivery_key(name, delivery_id.encode() + b"\n" if delivery_id else body)
        return DeliveryJob(self.routing_key, payload, key, self.tags)


def _is_same(value: Any, other: str | int | bool) -> bool:
    """Return whether two values of JSON are the same: 1 is not true there."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


class WebhookSources:
    """The systems that this process listens to, each with its secret."""

    def __init__(self, sources: Mapping[str, tuple[WebhookSource, SecretStr]]) -> None:
        self._sources = dict(sources)

    @classmethod
    def load(cls, settings: Settings, registry: Registry) -> WebhookSources:
        """Read the file of JOBS_WEBHOOKS. Raises InvalidWebhooks."""
        if settings.webhooks is None:
            return cls({})
        sources: dict[str, tuple[WebhookSource, SecretStr]] = {}
        try:
            tables = read_toml(settings.webhooks)
        except InvalidToml as error:
            raise InvalidWebhooks(f"JOBS_WEBHOOKS: {error}") from error
        for name, raw in tables.items():
            where = f"{settings.webhooks}: [{name}]"
            try:
                source = WebhookSource.model_validate(raw)
                registry.get_publishable(source.routing_key.partition(".")[2])
            except (ValidationError, UnknownJobType) as error:
                text = describe(error) if isinstance(error, ValidationError) else str(error)
                raise InvalidWebhooks(f"{where}: {text}") from error
            if name == "github" or re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is None:
                raise InvalidWebhooks(f"{where}: use another name: small letters, digits and _")
            secret = os.environ.get(source.secret, "")
            if len(secret) < 16:
                raise InvalidWebhooks(f"{where}: set {source.secret}, 16 characters or more")
            sources[name] = (source, SecretStr(secret))
        return cls(sources)

    def get(self, name: str) -> tuple[WebhookSource, SecretStr] | None:
        """Return a system and its secret; None where there is none of that name."""
        return self._sources.get(name)
