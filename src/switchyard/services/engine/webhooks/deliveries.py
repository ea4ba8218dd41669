"""Deliveries of GitHub's webhooks, and the jobs that they ask for.

The functions depend on the received bytes alone, whose signature was checked before. The same bytes
are the same delivery, whatever the headers say: these are not signed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from switchyard.services.common.errors import InvalidInput

LANE = "hot"
STAR_WINDOW = 600.0
"""Seconds for which all new stars of a repository make one job."""
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}", re.ASCII)
_DELETED = frozenset({"deleted"})
_REPOSITORY_ACTIONS = _DELETED | {
    *("archived", "created", "edited", "privatized", "publicized", "renamed", "transferred"),
    "unarchived",
}
_COMMON_FIELDS = frozenset(
    {"action", "repository", "sender", "organization", "enterprise", "installation"}
)
"""Fields that deliveries of all events may have."""


class InvalidDelivery(InvalidInput):
    """A delivery with a valid signature can't be understood; the text says why."""


@dataclass(frozen=True, slots=True)
class DeliveryJob:
    """The job that a delivery asks for."""

    routing_key: str
    payload: Mapping[str, Any]
    key: str
    """Identifies the delivery."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A delivery that asks for no job."""

    why: str


def parse(body: bytes) -> Mapping[str, Any]:
    """Parse a body, which must be a JSON object. Raises InvalidDelivery."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidDelivery("the delivery is no JSON: choose the content type JSON") from error
    if not isinstance(document, dict):
        raise InvalidDelivery("the delivery is no JSON object")
    return document


def delivery_key(source: str, body: bytes) -> str:
    """Return the idempotency key of a delivery."""
    return f"webhook/{source}/{hashlib.sha256(body).hexdigest()}"


def github_job(event: str, body: bytes) -> DeliveryJob | Ignored:
    """Return the job for a delivery of GitHub: a release, a push to the default branch, a change of
    the repository, or a star. Raises InvalidDelivery, also where the body, which alone is signed,
    is not of the event that the header names."""
    if event not in _BELONGS_TO:
        return Ignored("ping" if event == "ping" else f"event {event[:50]!r}")
    event_fields = parse(body)
    repository = event_fields.get("repository")
    name = repository.get("full_name") if isinstance(repository, dict) else None
    if not isinstance(name, str) or _REPOSITORY.fullmatch(name) is None:
        raise InvalidDelivery("the delivery names no repository")
    if not _BELONGS_TO[event](event_fields):
        raise InvalidDelivery(f"the delivery is not of the event {event!r}, as its header says")
    if event == "repository" and event_fields["action"] in _DELETED:
        return Ignored("the repository is gone; its document stays")
    if event == "push":
        branch = repository.get("default_branch") if isinstance(repository, dict) else None
        if event_fields.get("deleted") is True or event_fields.get("ref") != f"refs/heads/{branch}":
            return Ignored("not of the default branch")
    key = delivery_key("github", body)
    if event == "star":
        if event_fields["starred_at"] is None:
            return Ignored("a star that was taken back")
        window = int(_star_time(event_fields["starred_at"]) // STAR_WINDOW)
        key = f"webhook/github/star/{name}/{window}"
    return DeliveryJob(f"{LANE}.ingest_github", {"repository": name}, key)


def _star_time(value: object) -> float:
    """Parse the time of a star, to seconds since the epoch. It is the sender's time and not ours,
    so that a repeated delivery makes the same job."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidDelivery("the delivery has no time at which the star was given") from error


def _is_repository_event(event_fields: Mapping[str, Any]) -> bool:
    """Tell whether the fields are of the event `repository`. Other events have an action and a
    repository, too, and more besides."""
    action = event_fields.get("action")
    is_known = isinstance(action, str) and action in _REPOSITORY_ACTIONS
    return is_known and not event_fields.keys() - _COMMON_FIELDS - {"changes"}


_BELONGS_TO: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "release": lambda fields: isinstance(fields.get("release"), dict),
    "push": lambda fields: isinstance(fields.get("ref"), str) and "action" not in fields,
    "repository": _is_repository_event,
    "star": lambda fields: "starred_at" in fields,
}
"""For each event that makes jobs: whether the fields of a body belong to it."""
