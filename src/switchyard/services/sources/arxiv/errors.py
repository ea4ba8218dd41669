"""What can go wrong between a job and arXiv.

RetryableError
├── ArxivUnavailable   can't be reached, too slow, 5xx, cut off
├── ArxivNonsense      an answer that is none: another content type, broken XML, an empty page
└── ArxivBusy          not now: the fleet's next request is due later, or arXiv said so
PermanentError
├── ArxivRefused       arXiv refuses the request: a malformed id or query
└── ArxivNotFound      there is no such entry
"""

from __future__ import annotations

from switchyard.services.jobs.outcomes import PermanentError, RetryableError


class ArxivUnavailable(RetryableError):
    """arXiv can't be reached, is too slow, or broke down over the request."""


class ArxivNonsense(RetryableError):
    """arXiv, or something before it, answered with something that is no feed."""


class ArxivBusy(RetryableError):
    """No request may be sent now. A job snoozes for `wait`, which uses up no attempt."""

    def __init__(self, message: str, *, wait: float) -> None:
        self.wait = wait
        """Seconds until there is a chance."""
        super().__init__(message, after=wait)


class ArxivRefused(PermanentError):
    """arXiv will say the same again; the text is what it says."""


class ArxivNotFound(PermanentError):
    """arXiv has no entry of that id."""
