"""Read listings by a time, newest first, in pages that stay exact while new rows are added."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, select, tuple_, union_all

from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.records.errors import InvalidCursor
from switchyard.services.engine.records.results import Page

Item = TypeVar("Item")

MAX_PAGE = 1_000
"""Rows of one page at most."""


def fetch_page(
    connection: Connection,
    query: Select[Any],
    at: ColumnElement[float],
    key: ColumnElement[str],
    make: Callable[[Row[Any]], Item],
    limit: int,
    cursor: str | None,
    parts: Sequence[ColumnElement[bool]] | None = None,
) -> Page[Item]:
    """Fetch one page of `query`, ordered by `at` and `key`, both descending.

    `parts` are conditions, of which each row meets exactly one; for each of them, an index has the
    rows in this order. Then the newest rows are found quickly, however many there are.

    Raises ValueError for a limit that is not 1 to 1,000, InvalidCursor.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be 1 to {MAX_PAGE}")
    query = query.add_columns(at.label("_at"), key.label("_key"))
    query = continued(query, at, key, cursor)

    def newest(part: Select[Any]) -> Select[Any]:
        return part.order_by(at.desc(), key.desc()).limit(limit + 1)

    if parts is not None:
        # In a statement of its own, or PostgreSQL may look for these keys among all rows.
        # With the key alone: to name all columns once more takes longer than the statement.
        keyed = query.with_only_columns(key.label("_key"), maintain_column_froms=True)
        each = [select(newest(keyed.where(part)).subquery().c._key) for part in parts]
        keys = connection.scalars(union_all(*each)) if each else ()
        query = query.where(among(connection, key, keys))
    keyed_rows = connection.execute(newest(query)).all()
    rows: Sequence[Row[Any]] = keyed_rows[:limit]
    has_more = len(keyed_rows) > limit
    last = rows[-1]._mapping if has_more else None
    return Page(
        items=tuple(make(row) for row in rows),
        next_cursor=_encode(last["_at"], last["_key"]) if last is not None else None,
    )


def continued(
    query: Select[Any], at: ColumnElement[float], key: ColumnElement[str], cursor: str | None
) -> Select[Any]:
    """Leave out the rows of the pages before a cursor. Raises InvalidCursor."""
    if cursor is None:
        return query
    last_at, last_key = _decode(cursor)
    return query.where(at <= last_at, tuple_(at, key) < tuple_(last_at, last_key))


def cursor_before(at: float) -> str:
    """Return a cursor for the rows that are older than a time."""
    return _encode(at, "")


def _encode(at: float, key: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([at, key]).encode()).decode()


def _decode(cursor: str) -> tuple[float, str]:
    try:
        at, key = json.loads(base64.urlsafe_b64decode(cursor))
        at, key = float(at), str(key)
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidCursor(f"{cursor!r} is not a cursor of this listing") from error
    # Anybody may have made it, with values that no database takes: NaN, lone surrogates, NUL.
    if not (isfinite(at) and key.isascii() and key.isprintable()):
        raise InvalidCursor(f"{cursor!r} is not a cursor of this listing")
    return at, key
