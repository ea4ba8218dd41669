"""Everything that can go wrong between this process and the ledger.

LedgerError
├── LedgerUnavailable      the database is away, locked for too long, or its disk is full: retry
│   └── TransactionRaced   other processes wrote the same rows at the same time, time and again
├── SchemaOutdated         the tables are missing or older than this program
├── RowRejected            the database refuses this very row; a retry does not help
└── IdempotencyConflict    the key belongs to a job with another type or payload
"""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy import exc

_SQLITE_OUTDATED = ("no such table", "no such column", "has no column named")
_PG_OUTDATED = ("42P01", "42703")
_PG_REJECTED = ("22", "23", "54")
_PG_REPEAT = ("40001", "40P01")


class LedgerError(Exception):
    """Base of all errors of this package. The text says what to do."""


class LedgerUnavailable(LedgerError):
    """The database can't be used now. Whether the write took place is not known; every write
    of the ledger may be repeated with the same ids."""


class SchemaOutdated(LedgerError):
    """The tables are missing, or are those of another version."""


class RowRejected(LedgerError):
    """The database refused the row: a value is missing, over-long or out of range."""


class IdempotencyConflict(LedgerError):
    """The idempotency key was used before, for a job with another type or payload."""

    def __init__(self, idempotency_key: str, job_id: str) -> None:
        self.idempotency_key = idempotency_key
        self.job_id = job_id
        super().__init__(
            f"idempotency key {idempotency_key!r} belongs to job {job_id}, which has another "
            "type or payload: choose another key"
        )


class TransactionRaced(LedgerUnavailable):
    """Other processes wrote the same rows at the same time, time and again."""


def translate(error: Exception) -> Exception:
    """The error of this package that a driver's or SQLAlchemy's error stands for.

    What is not the database's (a bug of ours) is returned as it is.
    """
    if isinstance(error, LedgerError):
        return error
    state = _sqlstate(error)
    text = _first_line(error)
    if state is not None:
        if state in _PG_REPEAT:
            return TransactionRaced(text)
        if state in _PG_OUTDATED:
            return _outdated(text)
        if state[:2] in _PG_REJECTED:
            return RowRejected(text)
        return LedgerUnavailable(f"the ledger's database refuses: {text}")
    if isinstance(error, exc.OperationalError) and any(s in text for s in _SQLITE_OUTDATED):
        return _outdated(text)
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return RowRejected(text)
    if isinstance(error, exc.DBAPIError):
        # asyncpg checks arguments before it sends them; its complaint is a ValueError too.
        if _caused_by(error, ValueError | OverflowError | TypeError):
            return RowRejected(text)
        return LedgerUnavailable(f"the ledger's database can't be used: {text}")
    if isinstance(error, exc.TimeoutError | OSError | TimeoutError):
        return LedgerUnavailable(f"the ledger's database can't be reached: {text}")
    if isinstance(error, exc.StatementError | OverflowError):
        return RowRejected(text)
    return error


def raise_translated(error: Exception) -> NoReturn:
    """Raise what `translate` makes of the error, which stays its cause."""
    translated = translate(error)
    if translated is error:
        raise error
    raise translated from error


def _outdated(text: str) -> SchemaOutdated:
    return SchemaOutdated(
        f"the ledger's tables are missing or old ({text}): run `jobctl db upgrade`"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """The error, what SQLAlchemy wrapped, and what its dialect had wrapped before."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = getattr(following, "orig", None) or following.__cause__
    return found


def _sqlstate(error: BaseException) -> str | None:
    for each in _chain(error):
        state = getattr(each, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def _caused_by(error: BaseException, kinds: object) -> bool:
    return any(isinstance(each, kinds) for each in _chain(error)[1:])  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    """What went wrong, without the statement and its parameters (they may be private)."""
    original = getattr(error, "orig", None) or error
    lines = str(original).splitlines()
    return lines[0] if lines else type(original).__name__
