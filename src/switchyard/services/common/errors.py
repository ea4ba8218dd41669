"""Everything that can go wrong in services/, in six kinds; each error is of exactly one.

SwitchyardError
├── InvalidInput            what was asked for can't be right: ask otherwise     (a ValueError, too)
├── NotFoundError           there is nothing of that name here                  (a LookupError, too)
├── ConflictError           right in itself, but not in the state that things are in
├── TemporarilyUnavailable  something that is needed is away, busy or full: try again later
│   └── RetryableError      a handler's word: try the job again
├── Misconfigured           settings, tables or declarations don't fit: an operator has to act
└── PermanentFailure        it was tried and can't be done: no repeat helps
    └── PermanentError      a handler's word: give the job up

A caller catches the kind, or the class, whichever says what it can do about it. What a kind means
to those outside is said once for HTTP (`api.http.errors`) and once for the command line
(`cli.base.errors`). The errors of one folder may also share a base (`LedgerError`, `StorageError`),
which is a subclass of SwitchyardError and is never raised itself. The broker's errors are a tree of
their own: `broker.errors`.
"""

from __future__ import annotations


class SwitchyardError(Exception):
    """Base of all errors of this package. The text says what is wrong and what to do."""


class InvalidInput(SwitchyardError, ValueError):
    """What was asked for can't be right, whatever the state of the system: ask otherwise."""


class NotFoundError(SwitchyardError, LookupError):
    """There is nothing of that name here, or no more."""


class ConflictError(SwitchyardError):
    """It can't be done in the state that things are in; the text says in which they are."""


class TemporarilyUnavailable(SwitchyardError):
    """Something that is needed is away, busy or full: the same can succeed later.

    The text may name hosts: it is for logs and operators.
    """


class Misconfigured(SwitchyardError):
    """Settings, tables or declarations don't fit together; the text says what to set or run."""


class PermanentFailure(SwitchyardError):
    """It was tried and can't be done, and trying again would not help."""


class PermanentError(PermanentFailure):
    """Raised by a handler when no further attempt can help (a corrupt document, a bad id)."""


class Expired(PermanentError):
    """Raised by a handler when the job's `expires_at` has passed: it is dead as `expired`."""


class RetryableError(TemporarilyUnavailable):
    """Raised by a handler to be tried again; `after` seconds is the least delay (Retry-After).

    With `counts=False` it uses up no attempt: what is needed is away or busy, through no fault of
    the job's. The job grows older meanwhile, so its lane's age limit ends what never ends; with
    `ages=False` as well it does not, and waits for as long as it takes.
    """

    def __init__(
        self, message: str, *, after: float | None = None, counts: bool = True, ages: bool = True
    ) -> None:
        self.after = after
        self.counts = counts
        self.ages = ages
        super().__init__(message)


class DependencyUnavailable(RetryableError):
    """What a job needs is away or busy: to try it again uses up no attempt."""

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
    """Return the kind that an error is of; None for an error without a kind, which is a defect."""
    return next((kind for kind in KINDS if isinstance(error, kind)), None)
