"""SQL that SQLite and PostgreSQL write differently: batches of rows and keys, locks, the time.

A batch is one parameter, so the text of a statement is constant. SQLite takes it as JSON and
answers with JSON: a statement is then one step, and the writer thread gives up the
interpreter lock once and not once per row. PostgreSQL takes an array per column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    TextClause,
    any_,
    bindparam,
    column,
    func,
    literal,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

Columns = Mapping[str, str]
"""Names of columns with their PostgreSQL types."""


def is_sqlite(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite"


def rows_source(dialect: str, columns: Columns) -> str:
    """Return a FROM item named `r`, made from the parameters that `rows_parameters` gives."""
    names = ", ".join(columns)
    if dialect == "sqlite":
        fields = ", ".join(
            f"json_extract(line, '$[{index}]') AS {name}" for index, name in enumerate(columns)
        )
        # Materialised, or json_each would render a line anew for every field.
        return (
            "(WITH lines AS MATERIALIZED (SELECT value AS line FROM json_each(:lines)), "
            f"fields AS MATERIALIZED (SELECT {fields} FROM lines) SELECT * FROM fields) AS r"
        )
    arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in columns.items())
    return f"unnest({arrays}) AS r({names})"


def rows_parameters(
    dialect: str, columns: Columns, rows: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Return the parameters of `rows_source` for rows with the values of `columns`, in their
    order."""
    if dialect == "sqlite":
        return {"lines": to_json(rows).decode()}  # five times as fast as `json`
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def keys_condition(dialect: str, column: str) -> str:
    """Return the condition that `column` is in the parameter `keys`; see `keys_parameter`."""
    if dialect == "sqlite":
        return f"{column} IN (SELECT value FROM json_each(:keys))"
    return f"{column} = ANY(CAST(:keys AS text[]))"


def select_by_keys(dialect: str, columns: str, table: str, key: str, *, where: str) -> str:
    """Select rows of a table by many values of the last column of an index, the ones before it
    given by `where`.

    Without statistics, which a new table does not have for a minute, PostgreSQL expects few rows to
    match `where`, reads all of them and compares: a thousand times slower. This form makes it look
    up each key.
    """
    if dialect == "sqlite":
        return f"SELECT {columns} FROM {table} WHERE {where} AND {keys_condition(dialect, key)}"
    return (
        "SELECT found.* FROM unnest(CAST(:keys AS text[])) AS wanted(key) CROSS JOIN LATERAL "
        f"(SELECT {columns} FROM {table} WHERE {where} AND {key} = wanted.key OFFSET 0) AS found"
    )


def keys_parameter(dialect: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the parameter of `keys_condition`."""
    return {"keys": list_value(dialect, keys)}


def among(
    connection: Connection, key: ColumnElement[Any], values: Iterable[Any]
) -> ColumnElement[bool]:
    """Return the condition that `key` is one of the values: one parameter, however many there
    are."""
    return among_in(connection.dialect.name, key, values)


def among_in(dialect: str, key: ColumnElement[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition of `among`, for a dialect instead of a connection."""
    members = list(values)
    if dialect == "sqlite":
        each = func.json_each(json.dumps(members)).table_valued("value")
        return key.in_(select(column("value")).select_from(each))
    return key == any_(literal(members, postgresql.ARRAY(key.type)))


def among_listed(dialect: str, key: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return the condition of `among` for a statement that is made once: the values are its
    parameter `name`, made by `list_value`."""
    if dialect == "sqlite":
        each = func.json_each(bindparam(name, type_=Text)).table_valued("value")
        return key.in_(select(column("value")).select_from(each))
    return key == any_(bindparam(name, type_=postgresql.ARRAY(key.type)))


def list_value(dialect: str, values: Sequence[Any]) -> Any:
    """Return a list as the value of one parameter: JSON or an array."""
    return json.dumps(values) if dialect == "sqlite" else list(values)


def select_locked(dialect: str, columns: str, key: str, *, table: str = "jobs") -> TextClause:
    """Return a SELECT of `columns` for the rows with these keys that locks them against changes.

    PostgreSQL locks the rows, in one order in all processes; in SQLite the transaction alone
    may write.
    """
    condition = keys_condition(dialect, key)
    if dialect == "sqlite":
        return text(
            f"SELECT json_group_array(json_array({columns})) FROM {table} WHERE {condition}"
        )
    return text(f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY id FOR UPDATE")


def fetch_locked(
    connection: Connection, statement: TextClause, keys: Sequence[str]
) -> Sequence[Sequence[Any]]:
    """Return the rows of a `select_locked`."""
    result = connection.execute(statement, keys_parameter(connection.dialect.name, keys))
    if is_sqlite(connection):
        rows: list[list[Any]] = json.loads(result.scalar_one())
        return rows
    return result.all()


def now_sql(connection: Connection) -> str:
    """Return the database's own time in seconds since the epoch, as SQL (in SQLite to 1 ms)."""
    return now_sql_of(connection.dialect.name)


def now_sql_of(dialect: str) -> str:
    """Return the time as `now_sql` does, for a statement that is made once for a dialect."""
    if dialect == "sqlite":
        return "((julianday('now') - 2440587.5) * 86400.0)"
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


def db_now(connection: Connection) -> float:
    """Return the database's own time in seconds since the epoch, as it is now."""
    return float(connection.scalar(text(f"SELECT {now_sql(connection)}")) or 0.0)


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT with support for ON CONFLICT, which both databases write alike."""
    return sqlite.insert(table) if is_sqlite(connection) else postgresql.insert(table)
