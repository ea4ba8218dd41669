"""Errors between this process and the ledger.

LedgerError
├── LedgerUnavailable      the database is away, locked for too long, or its disk is full: retry
│   ├── TransactionConflict   other processes wrote the same rows, in every retry
│   ├── LedgerFull         its disk has no room
│   ├── LedgerConnectionLimit  its server has no connection left for us
│   ├── LedgerLocked       another process holds the lock of its file
│   ├── LedgerReadOnly     it can be read and takes no writes
│   └── LedgerAuthError    the server refuses the user, the password or the database
├── LedgerMisconfigured    the address or the library can't be used for a ledger
├── LedgerClosed           this process has closed it
│   └── LedgerForked       it was opened before the process was forked
├── SchemaOutdated         the tables are older than this program, or newer
│   ├── ProgramOutdated    they are newer, and this program may not use them
│   └── LedgerMissing      there is no ledger at that address
├── RowRejected            the database refuses this very row; a retry does not help
└── IdempotencyConflict    the key belongs to a job with another type or payload

Each is also of one of the kinds in `services.common.errors`; LedgerError itself is never raised.
"""

from __future__ import annotations

from switchyard.services.common.errors import (
    ConflictError,
    InvalidInput,
    Misconfigured,
    NotFoundError,
    PermanentFailure,
    SwitchyardError,
    TemporarilyUnavailable,
)
from switchyard.services.engine.records.requests import plain_key


class LedgerError(SwitchyardError):
    """Base of the errors of the ledger's database. The text says what to do."""


class LedgerUnavailable(LedgerError, TemporarilyUnavailable):
    """The database can't be used now. Whether the write took place is not known; every write
    of the ledger may be repeated with the same ids."""


class LedgerAuthError(LedgerUnavailable):
    """The server refuses user, password or database: waiting does not help."""


class LedgerFull(LedgerUnavailable):
    """The database's disk is full: it can be read, but not written to."""


class LedgerConnectionLimit(LedgerUnavailable):
    """The database's server permits no further connection."""


class LedgerReadOnly(LedgerUnavailable):
    """The database takes no writes: it is a standby, or was set to be read-only."""


class LedgerLocked(LedgerUnavailable):
    """Another process has held the lock of the database's file for too long: this transaction has
    written nothing."""


class LedgerMisconfigured(LedgerError, Misconfigured):
    """The address can't be one of a ledger, or the installed library can't be used for it."""


class LedgerClosed(LedgerError, PermanentFailure):
    """This process has closed the ledger: nothing was written."""


class LedgerForked(LedgerClosed):
    """The ledger was opened by the process that this one was forked from: nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "this ledger was opened before the process was forked, and its database connections "
            "are those of the parent: open another one in the child, with what uses it "
            "(Ledger.open, JobPublisher.opened, LLMQueue.open)"
        )


class SchemaOutdated(LedgerError, Misconfigured):
    """The tables are those of another version."""


class ProgramOutdated(SchemaOutdated):
    """The tables are of a newer version, which this program can't use."""


class LedgerMissing(SchemaOutdated):
    """There is no ledger: no such file, or a database without its tables."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"there is no ledger at {where}: go to the folder of yours, or correct "
            "JOBS_DATABASE_URL or JOBS_DATA_DIR; `jobctl db upgrade` creates a new one there, and "
            "so does `jobctl up`"
        )


class RowRejected(LedgerError, InvalidInput):
    """The database refused the row: a value is missing, over-long or out of range."""


class IdempotencyConflict(LedgerError, ConflictError):
    """The idempotency key was used before, for a job with another type or payload."""

    def __init__(self, idempotency_key: str, job_id: str) -> None:
        self.idempotency_key = idempotency_key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {plain_key(idempotency_key)!r} belongs to job {job_id}, which has "
            "another type or payload: choose another key"
        )


class UnknownJob(NotFoundError):
    """The ledger has no job with that id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}: `jobctl jobs list` shows those there are")


class UnknownDeadLetter(NotFoundError):
    """The ledger has no dead letter with that id."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(f"there is no dead letter {letter_id!r}: see `jobctl dead list`")


class InvalidCursor(InvalidInput):
    """The cursor is not one of this listing."""
