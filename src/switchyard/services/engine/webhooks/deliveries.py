"""A delivery that somebody else's system makes: is it theirs, and which job does it ask for?

Pure functions of the bytes that came. The signature is checked before anything of them is read; the
same bytes again are the same delivery, whatever its headers say, for they are not signed.
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
_GONE = frozenset({"deleted"})
_REPOSITORY_ACTIONS = _GONE | {
    *("archived", "created", "edited", "privatized", "publicized", "renamed", "transferred"),
    "unarchived",
}
_OF_ALL = frozenset(
    {"action", "repository", "sender", "organization", "enterprise", "installation"}
)
"""Fields that deliveries of all events may have."""


class InvalidDelivery(InvalidInput):
    """The delivery is signed as it should be, and makes no sense; the text says why."""


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
    """Names a delivery, in the ledger."""
    return f"webhook/{source}/{hashlib.sha256(body).hexdigest()}"


def github_job(event: str, body: bytes) -> DeliveryJob | Ignored:
    """Return what GitHub tells: a release, a push to the default branch, a repository that has
    changed, a star. Only the body is signed: one that is of another event than the header says is
    nobody's delivery. Raises InvalidDelivery."""
    if event not in _IS_OF:
        return Ignored("ping" if event == "ping" else f"event {event[:50]!r}")
    event_fields = parse(body)
    repository = event_fields.get("repository")
    name = repository.get("full_name") if isinstance(repository, dict) else None
    if not isinstance(name, str) or _REPOSITORY.fullmatch(name) is None:
        raise InvalidDelivery("the delivery names no repository")
    if not _IS_OF[event](event_fields):
        raise InvalidDelivery(f"the delivery is not of the event {event!r}, as its header says")
    if event == "repository" and event_fields["action"] in _GONE:
        return Ignored("the repository is gone; its document stays")
    if event == "push":
        branch = repository.get("default_branch") if isinstance(repository, dict) else None
        if event_fields.get("deleted") is True or event_fields.get("ref") != f"refs/heads/{branch}":
            return Ignored("not of the default branch")
    key = delivery_key("github", body)
    if event == "star":
        if event_fields["starred_at"] is None:
            return Ignored("a star that was taken back")
        key = (
            f"webhook/github/star/{name}/{int(_moment(event_fields['starred_at']) // STAR_WINDOW)}"
        )
    return DeliveryJob(f"{LANE}.ingest_github", {"repository": name}, key)


def _moment(value: object) -> float:
    """Return the seconds since the epoch. By the sender's signed word and not by a clock: the same
    delivery is the same job, whenever it comes."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidDelivery("the delivery has no time at which the star was given") from error


def _is_repository(event_fields: Mapping[str, Any]) -> bool:
    """Many events have an action and a repository: this one has nothing else of its own."""
    action = event_fields.get("action")
    is_known = isinstance(action, str) and action in _REPOSITORY_ACTIONS
    return is_known and not event_fields.keys() - _OF_ALL - {"changes"}


_IS_OF: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "release": lambda told: isinstance(told.get("release"), dict),
    "push": lambda told: isinstance(told.get("ref"), str) and "action" not in told,
    "repository": _is_repository,
    "star": lambda told: "starred_at" in told,
}
"""The events that make jobs, and what the body of each has that no other's does."""
