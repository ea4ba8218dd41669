"""All errors of services/, in six kinds; each error is of exactly one kind.

SwitchyardError
├── InvalidInput            the request can't be right: ask otherwise            (a ValueError, too)
├── NotFoundError           nothing has that name or id here                    (a LookupError, too)
├── ConflictError           the request is valid, but not in the present state of its object
├── TemporarilyUnavailable  a dependency is away, busy or full: try again later
│   └── RetryableError      raised by a handler: try the job again
├── Misconfigured           settings, tables or declarations don't fit: an operator has to act
└── PermanentFailure        the work was tried and can't be done: no repeat helps
    └── PermanentError      raised by a handler: give the job up

A caller catches the kind, or the class, whichever tells it what to do. What a kind means to clients
is defined once for HTTP (`api.http.errors`) and once for the command line
(`cli.base.errors`). The errors of one folder may also share a base (`LedgerError`, `StorageError`),
which is a subclass of SwitchyardError and is never raised itself. The broker's errors are a tree of
their own: `broker.errors`.
"""

from __future__ import annotations


class SwitchyardError(Exception):
    """Base of all errors of this package. The text says what is wrong and what to do."""


class InvalidInput(SwitchyardError, ValueError):
    """The request can't be right, whatever the state of the system: ask otherwise."""


class NotFoundError(SwitchyardError, LookupError):
    """Nothing has that name or id here, or no longer."""


class ConflictError(SwitchyardError):
    """The request can't be done in the present state of its object; the text names that state."""


class TemporarilyUnavailable(SwitchyardError):
    """A dependency is away, busy or full: the same request can succeed later.

    The text may name hosts: it is for logs and operators.
    """


class Misconfigured(SwitchyardError):
    """Settings, tables or declarations don't fit together; the text says what to set or run."""


class PermanentFailure(SwitchyardError):
    """The work was tried and can't be done, and trying again would not help."""


class PermanentError(PermanentFailure):
    """Raised by a handler when no further attempt can help (a corrupt document, a bad id)."""


class Expired(PermanentError):
    """Raised by a handler when the job's `expires_at` has passed: it is dead as `expired`."""


class RetryableError(TemporarilyUnavailable):
    """Raised by a handler to have the job tried again, after at least `after` seconds
    (Retry-After).

    With `counts=False` no attempt is used up: a dependency is away or busy, which is not the job's
    fault. The job still ages in its lane, whose age limit ends it at last; with `ages=False` as
    well it does not age, and waits without end.
    """

    def __init__(
        self, message: str, *, after: float | None = None, counts: bool = True, ages: bool = True
    ) -> None:
        self.after = after
        self.counts = counts
        self.ages = ages
        super().__init__(message)


class DependencyUnavailable(RetryableError):
    """A dependency of a job is away or busy: trying again uses up no attempt."""

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message, after=after, counts=False)


KINDS: tuple[type[SwitchyardError], ...] = (
    InvalidInput,
    NotFoundError,
    ConflictError,
    TemporarilyUnavailable,
    Misconfigured,
    PermanentFailure,
)


def kind_of(error: SwitchyardError) -> type[SwitchyardError] | None:
    """Return an error's kind; None for an error without one, which is a defect."""
    return next((kind for kind in KINDS if isinstance(error, kind)), None)
