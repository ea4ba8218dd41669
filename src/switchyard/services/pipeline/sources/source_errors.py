"""Errors of requests to the servers of sources.

RetryableError
├── SourceUnavailable       can't be reached, too slow, 5xx, cut off
├── InvalidSourceResponse   not an answer: another content type, broken, empty, without an end
└── SourceBusy              the fleet's next request is due later, or the server says so
PermanentError
├── SourceRefused           the server refuses the request: a malformed id or query, no right
└── SourceNotFound          the server has nothing there
"""

from __future__ import annotations

from switchyard.services.common.errors import PermanentError, RetryableError


class SourceUnavailable(RetryableError):
    """The server can't be reached, is too slow, or failed with an error of its own."""


class InvalidSourceResponse(RetryableError):
    """The server, or a proxy before it, answered with something that can't be right."""


class SourceBusy(RetryableError):
    """No request may be sent now. A job snoozes for `wait`, which uses up no attempt."""

    def __init__(self, message: str, *, wait: float) -> None:
        self.wait = wait
        """Seconds until the next request may be sent."""
        super().__init__(message, after=wait, counts=False)


class SourceRefused(PermanentError):
    """The server refuses the request, and would refuse it again; the message says why."""


class SourceNotFound(PermanentError):
    """The server has nothing under that name."""
