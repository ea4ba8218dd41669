"""Translate errors of database drivers into the ledger's own."""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy import exc

from switchyard.services.engine.records.errors import (
    LedgerAuthError,
    LedgerConnectionLimit,
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    RowRejected,
    SchemaOutdated,
)

_SQLITE_OUTDATED = ("no such table", "no such column", "has no column named")
_SQLITE_FULL = "disk is full"
_SQLITE_READ_ONLY = "readonly database"
_SQLITE_LOCKED = "database is locked"

# SQLSTATE codes of PostgreSQL, or the classes that they begin with.
_PG_OUTDATED = ("42P01", "42703")
_PG_REJECTED = ("22", "23", "54")
_PG_AUTH_FAILED = ("28000", "28P01", "3D000")
_PG_FULL = "53100"
_PG_TOO_MANY_CONNECTIONS = "53300"
_PG_READ_ONLY = "25006"
_PG_CONFLICT = ("40001", "40P01")


def translate(error: Exception) -> Exception:
    """Return the ledger's error for one of a driver or of SQLAlchemy.

    An error that is not the database's (a bug of ours) is returned as it is.
    """
    if isinstance(error, LedgerError):
        return error
    state = _sqlstate(error)
    text = _first_line(error)
    if state is not None:
        if state in _PG_CONFLICT:
            return TransactionConflict(text)
        if state == _PG_FULL:
            return LedgerFull(f"the disk of the ledger's database is full: {text}")
        if state == _PG_TOO_MANY_CONNECTIONS:
            return LedgerConnectionLimit(f"the ledger's database has no connection left: {text}")
        if state == _PG_READ_ONLY:
            return LedgerReadOnly(f"the ledger's database takes no writes: {text}")
        if state in _PG_OUTDATED:
            return _outdated_error(text)
        if state[:2] in _PG_REJECTED:
            return RowRejected(text)
        if state in _PG_AUTH_FAILED:
            return LedgerAuthError(f"the ledger's database refuses: {text}: see JOBS_DATABASE_URL")
        return LedgerUnavailable(f"the ledger's database refuses: {text}")
    if isinstance(error, exc.OperationalError) and any(part in text for part in _SQLITE_OUTDATED):
        return _outdated_error(text)
    if isinstance(error, exc.OperationalError) and _SQLITE_FULL in text:
        return LedgerFull(f"the disk of the ledger's database is full: {text}")
    if isinstance(error, exc.OperationalError) and _SQLITE_READ_ONLY in text:
        return LedgerReadOnly(f"the ledger's file takes no writes: {text}")
    if isinstance(error, exc.OperationalError) and _SQLITE_LOCKED in text:
        return LedgerLocked(f"the ledger's database can't be used: {text}")
    if isinstance(error, exc.IntegrityError | exc.DataError):
        return RowRejected(text)
    if isinstance(error, exc.DBAPIError):
        # asyncpg checks arguments before it sends them; its complaint is a ValueError too.
        if _caused_by(error, ValueError | OverflowError | TypeError):
            return RowRejected(text)
        return LedgerUnavailable(f"the ledger's database can't be used: {text}")
    if isinstance(error, TimeoutError) and not str(error):
        return LedgerUnavailable("the ledger's database does not answer")
    if isinstance(error, exc.TimeoutError):  # SQLAlchemy's, of its pool
        return LedgerUnavailable(
            "the ledger's database does not answer: all connections of this process wait for it"
        )
    if isinstance(error, OSError):
        return LedgerUnavailable(f"the ledger's database can't be reached: {text}")
    if isinstance(error, exc.StatementError | OverflowError | UnicodeEncodeError):
        return RowRejected(text)
    return error


def raise_translated(error: Exception) -> NoReturn:
    """Raise what `translate` makes of the error, which stays its cause."""
    translated = translate(error)
    if translated is error:
        raise error
    raise translated from error


def _outdated_error(text: str) -> SchemaOutdated:
    return SchemaOutdated(
        f"the ledger's tables are missing or old ({text}): run `jobctl db upgrade`"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error, what SQLAlchemy wrapped, and what its dialect had wrapped before."""
    errors: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in errors:
        errors.append(cause)
        cause = getattr(cause, "orig", None) or cause.__cause__
    return errors


def _sqlstate(error: BaseException) -> str | None:
    for each in _chain(error):
        state = getattr(each, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def _caused_by(error: BaseException, kinds: object) -> bool:
    return any(isinstance(each, kinds) for each in _chain(error)[1:])  # type: ignore[arg-type]


def _first_line(error: BaseException) -> str:
    """Return what went wrong, without the statement and its parameters (they may be private)."""
    original = getattr(error, "orig", None) or error
    lines = str(original).splitlines()
    return lines[0] if lines else type(original).__name__


class TransactionConflict(LedgerUnavailable):
    """Other processes wrote the same rows at the same time; the transaction can be repeated."""
