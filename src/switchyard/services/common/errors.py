"""Everything that can go wrong in services/, in six kinds; each error is of exactly one.

SwitchyardError
├── InvalidInput     what was asked for can't be right: ask otherwise          (a ValueError, too)
├── Unknown          there is nothing of that name here                       (a LookupError, too)
├── WrongState       right in itself, but not in the state that things are in
├── NotNow           something that is needed is away, busy or full: the same later can succeed
│   └── RetryableError     a handler's word: try the job again                  (jobs/outcomes.py)
├── Misconfigured    settings, tables or declarations don't fit together: an operator has to act
└── Failed           it was tried and can't be done: no repeat helps
    └── PermanentError     a handler's word: give the job up                    (jobs/outcomes.py)

A caller catches the kind, or the class, whichever says what it can do about it. What a kind means
to those outside is said once for HTTP (`api.http.errors`) and once for the command line
(`cli.base.errors`). Errors of one room may share a base besides (`LedgerError`, `StorageError`),
which is below SwitchyardError and is never raised itself. The broker's errors are a tree of their
own: `broker.errors`.
"""

from __future__ import annotations


class SwitchyardError(Exception):
    """Base of all errors of this package. The text says what is wrong and what to do."""


class InvalidInput(SwitchyardError, ValueError):
    """What was asked for can't be right, whatever the state of the system: ask otherwise."""


class Unknown(SwitchyardError, LookupError):
    """There is nothing of that name here, or no more."""


class WrongState(SwitchyardError):
    """It can't be done in the state that things are in; the text says in which they are."""


class NotNow(SwitchyardError):
    """Something that is needed is away, busy or full: the same can succeed later.

    The text may name hosts: it is for logs and operators.
    """


class Misconfigured(SwitchyardError):
    """Settings, tables or declarations don't fit together; the text says what to set or run."""


class Failed(SwitchyardError):
    """It was tried and can't be done, and trying again would not help."""


KINDS: tuple[type[SwitchyardError], ...] = (
    InvalidInput,
    Unknown,
    WrongState,
    NotNow,
    Misconfigured,
    Failed,
)


def kind_of(error: SwitchyardError) -> type[SwitchyardError] | None:
    """The kind that an error is of; None for one that has none, which is a defect."""
    return next((kind for kind in KINDS if isinstance(error, kind)), None)
