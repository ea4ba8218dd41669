"""Server-sent events on the client's side: read them, and decide when to reconnect."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from switchyard.api.client.errors import (
    ApiError,
    ApiUnavailable,
    RateLimited,
    Unavailable,
    UnexpectedResponse,
    shown_url,
)

SILENCE_TIMEOUT = 60.0
"""Seconds without a sign of life after which a stream counts as cut."""
FIRST_PAUSE, MAX_PAUSE = 0.2, 5.0
"""First and longest pause, in seconds, before a stream is opened again; it doubles each time that
no event comes."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    name: str
    """started, progress, succeeded, retrying, dead, cancelled; state, end and gap: see
    docs/api.md."""
    data: dict[str, Any]
    id: str | None = None
    """To be passed as `last_event_id` to go on after this event; None for state, end and gap."""


@dataclass(slots=True)
class EventReader:
    """Makes events from the lines of a stream."""

    last_id: str | None = None
    """Id of the last event that had one."""
    _fields: dict[str, str] = field(default_factory=dict)

    def feed(self, text: str) -> Event | None:
        """Read a line. Returns the event that it completes, if any. Raises UnexpectedResponse."""
        if text:
            name, _, value = text.partition(":")
            if name:  # else a comment, which is a sign of life
                self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        self.last_id = fields.get("id", self.last_id)
        return Event(fields.get("event", "message"), _parse_data(fields["data"]), fields.get("id"))

    def drop_partial_event(self) -> None:
        """Drop the fields of an event that was cut off in the middle."""
        self._fields = {}


def check_stream(answer: httpx.Response) -> None:
    """Raise UnexpectedResponse for a success that is no event stream, which would be opened again
    for ever."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise UnexpectedResponse(
            f"{shown_url(answer.url)} answers with no stream of events: is it the API?"
        )


def _parse_data(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UnexpectedResponse("an event that is not JSON came: is it the API?") from error
    if not isinstance(data, dict):
        raise UnexpectedResponse(
            "an event that is no object came: is it the API, of the same version?"
        )
    return data


@dataclass(slots=True)
class ReconnectBackoff:
    """Counts failed attempts in a row to open a stream, and returns the pause before the next."""

    max_failures: int
    failures: int = 0
    has_opened: bool = False
    """Whether the stream has worked before: then errors may be temporary."""

    def pause(self, error: ApiError | None) -> float:
        """Return the seconds to wait before the stream, which ended or could not be opened, is
        opened again. Raises the error where another attempt is of no use."""
        is_temporary = isinstance(error, ApiUnavailable | Unavailable | RateLimited)
        if error is not None and not (is_temporary and self.has_opened):
            raise error
        self.failures += 1
        if self.failures > self.max_failures:
            raise error or ApiUnavailable("the stream of events ends again and again")
        wait: float = min(FIRST_PAUSE * 2 ** (self.failures - 1), MAX_PAUSE)
        if error is not None and error.retry_after is not None:
            wait = max(wait, min(error.retry_after, MAX_PAUSE))
        return wait

    def restore(self) -> None:
        """Note that the stream works: the next failure counts as the first."""
        self.failures = 0
        self.has_opened = True
