"""A delivery that somebody else's system makes: is it theirs, and which job does it ask for?

Pure functions of the bytes that came. The signature is checked before anything of them is read; the
same bytes again are the same delivery, whatever its headers say, for they are not signed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.services.errors import InvalidInput

LANE = "hot"
STAR_WINDOW = 600.0
"""Seconds in which all stars of a repository are one job."""
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,39}/[A-Za-z0-9._-]{1,100}", re.ASCII)
_GONE = frozenset({"deleted"})


class InvalidDelivery(InvalidInput):
    """The delivery is signed as it should be, and makes no sense; the text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The job that a delivery asks for."""

    routing_key: str
    payload: Mapping[str, Any]
    key: str
    """The same for the same delivery."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """A delivery that is nobody's concern."""

    why: str


def parsed(body: bytes) -> Mapping[str, Any]:
    """The body, which must be a JSON object. Raises InvalidDelivery."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidDelivery("the delivery is no JSON: choose the content type JSON") from error
    if not isinstance(found, dict):
        raise InvalidDelivery("the delivery is no JSON object")
    return found


def delivery_key(source: str, body: bytes) -> str:
    """Names a delivery, in the ledger."""
    return f"webhook/{source}/{hashlib.sha256(body).hexdigest()}"


def github_job(event: str, body: bytes, *, now: float) -> Wanted | Ignored:
    """What GitHub tells: a release, a push to the default branch, a repository that has changed, a
    star. Raises InvalidDelivery."""
    if event not in ("release", "push", "repository", "star"):
        return Ignored("ping" if event == "ping" else f"event {event[:50]!r}")
    told = parsed(body)
    repository = told.get("repository")
    name = repository.get("full_name") if isinstance(repository, dict) else None
    if not isinstance(name, str) or _REPOSITORY.fullmatch(name) is None:
        raise InvalidDelivery("the delivery names no repository")
    action = told.get("action")
    if event == "repository" and action in _GONE:
        return Ignored("the repository is gone; its document stays")
    if event == "push":
        branch = repository.get("default_branch") if isinstance(repository, dict) else None
        if told.get("deleted") is True or told.get("ref") != f"refs/heads/{branch}":
            return Ignored("not of the default branch")
    key = delivery_key("github", event.encode() + b"\n" + body)
    if event == "star":
        key = f"webhook/github/star/{name}/{int(now // STAR_WINDOW)}"
    return Wanted(f"{LANE}.ingest_github", {"repository": name}, key)
