"""Lock named limits, and read the rows by which a transaction decides about permits.

There are two statements, however many jobs and limits there are, and a third if a waiting job may
get a permit. On PostgreSQL, each statement is a round trip while the limits are locked. On SQLite,
each releases the interpreter lock, which is slow to come back while the event loop is busy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Double,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    column,
    func,
    lateral,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.types import TypeEngine

from switchyard.services.engine.ledger.sql.dialect import (
    among_listed,
    insert_into,
    is_sqlite,
    list_value,
    now_sql_of,
)
from switchyard.services.engine.ledger.sql.limit_writing import MAX_RESERVED
from switchyard.services.engine.ledger.sql.tables import (
    IN_ORDER,
    WAS_WOKEN,
    jobs,
    limit_holds,
    limit_waits,
    limits,
)

LimitId = tuple[str, str]
"""A limit's name and key."""

_COLUMNS: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(("kind", "job_id", "hold", "name", "key", "state"), Text()),
    **dict.fromkeys(("in_use", "reserved", "reserved_tokens"), BigInteger()),
    **dict.fromkeys(("tokens", "times", "redrives", "attempts", "started_second"), BigInteger()),
    **dict.fromkeys(("rank", "first_rank"), BigInteger()),
    **dict.fromkeys(("now", "since"), Double()),
    **dict.fromkeys(("called_until", "expires_at"), Double()),
}
"""The columns of the statement that reads counts, waits, jobs and holds together; null where a
row's kind has no such column."""


@dataclass
class LockedLimitRows:
    """The rows that were read under the lock. Times are seconds of the database's clock."""

    now: float
    """When the rows were read."""
    limit_rows: Mapping[LimitId, Row[Any]]
    """The rows of the limits, locked."""
    counts: dict[LimitId, Row[Any]] = field(default_factory=dict)
    """By limit: `in_use` is the number of its running jobs, `reserved` that of permits kept for
    woken jobs, with `reserved_tokens`; `first_rank` is null where no job may be woken."""
    waits: dict[str, Row[Any]] = field(default_factory=dict)
    """By job, with `name` and `key` of its limit: `rank`, `since`, `tokens`, how many `times` it
    was put off, and until when its permit is reserved (`called_until`)."""
    jobs: dict[str, Row[Any]] = field(default_factory=dict)
    """By job: `state`, `redrives` and `attempts`."""
    holds: list[Row[Any]] = field(default_factory=list)
    """Permits in use: `hold`, `job_id`, `started_second`, `tokens` and `expires_at`."""


def read_locked(
    connection: Connection,
    limit_ids: Collection[LimitId],
    *,
    requesting: Collection[str] = (),
    claimed: Collection[str] = (),
    holds: Collection[str] = (),
) -> LockedLimitRows:
    """Lock limits until the end of the transaction, always in the same order, and read their rows.

    Also reads the jobs that are `requesting` permits, the permits of the `claimed` jobs, and
    `holds`.
    """
    dialect = connection.dialect.name
    parameters = _id_parameters(dialect, sorted(limit_ids))
    limit_rows = _lock_rows(connection, parameters, limit_ids)
    # After the lock: counts from before it could be outdated.
    query = _read_query(dialect, bool(requesting), bool(holds or claimed))
    lists = {"requesting": requesting, "claimed": claimed, "holds": holds}
    values = {name: list_value(dialect, sorted(ids)) for name, ids in lists.items()}
    rows = LockedLimitRows(now=0.0, limit_rows=limit_rows)
    for row in connection.execute(query, parameters | values):
        match row.kind:
            case "limit":
                rows.counts[row.name, row.key] = row
                rows.now = max(rows.now, row.now)
            case "wait":
                rows.waits[row.job_id] = row
            case "job":
                rows.jobs[row.job_id] = row
            case _:
                rows.holds.append(row)
    return rows


def read_waiting(
    connection: Connection, limit_ids: Collection[LimitId], now: float, at_most: int
) -> dict[LimitId, list[Row[Any]]]:
    """Read the jobs that may be woken, in the order of IN_ORDER; up to `at_most` of each limit."""
    values = {"now": now, "at_most": at_most}
    if is_sqlite(connection):
        # It has no LATERAL, and no round trip to save.
        query = _first_waiting(bindparam("name"), bindparam("key"))
        return {
            (name, key): list(connection.execute(query, values | {"name": name, "key": key}))
            for name, key in limit_ids
        }
    waiting: dict[LimitId, list[Row[Any]]] = {limit_id: [] for limit_id in limit_ids}
    parameters = _id_parameters(connection.dialect.name, sorted(limit_ids))
    for row in connection.execute(_first_waiting_of_each(), values | parameters):
        waiting[row.name, row.key].append(row)
    return waiting


def _lock_rows(
    connection: Connection, parameters: Mapping[str, Any], limit_ids: Collection[LimitId]
) -> dict[LimitId, Row[Any]]:
    query = _lock_query(connection.dialect.name)
    rows = connection.execute(query, parameters).all()
    if len(rows) < len(limit_ids):
        new = [
            {"name": name, "key": key, "bins": "[]", "updated_at": 0.0}
            for name, key in sorted(limit_ids)
        ]
        connection.execute(insert_into(connection, limits).on_conflict_do_nothing(), new)
        rows = connection.execute(query, parameters).all()
    return {(row.name, row.key): row for row in rows}


# --- the statements: cached, as making one takes longer than running it --------------------------


@cache
def _lock_query(dialect: str) -> Select[Any]:
    query = select(limits).where(_has_listed_id(dialect))
    return query.order_by(limits.c.name, limits.c.key).with_for_update()  # not in SQLite


@cache
def _read_query(dialect: str, with_requesting: bool, with_holds: bool) -> CompoundSelect[Any]:
    now: ColumnElement[float] = literal_column(now_sql_of(dialect), Double)
    parts = [_select_counts(now).where(_has_listed_id(dialect))]
    if with_requesting:
        parts += _select_requesting(dialect)
    if with_holds:
        parts.append(_select_holds(dialect))
    return union_all(*parts)


@cache
def _first_waiting_of_each() -> Select[Any]:
    each = lateral(_first_waiting(limits.c.name, limits.c.key), "first")
    return (
        select(limits.c.name, limits.c.key, *each.c)
        .select_from(limits.join(each, true()))
        .where(_has_listed_id("postgresql"))
        .order_by(each.c.rank, each.c.since, each.c.job_id)
    )


def _first_waiting(name: ColumnElement[str], key: ColumnElement[str]) -> Select[Any]:
    now, at_most = bindparam("now", type_=Double), bindparam("at_most", type_=BigInteger)
    conditions = (limit_waits.c.name == name, limit_waits.c.key == key, *_may_be_woken(now))
    query = select(
        limit_waits.c.job_id, limit_waits.c.tokens, limit_waits.c.rank, limit_waits.c.since
    )
    return query.where(*conditions).order_by(*IN_ORDER).limit(at_most)


def _select_counts(now: ColumnElement[float]) -> Select[Any]:
    """Select each limit's counts of permits in use and reserved, the time, and the first rank."""
    is_held = (limit_holds.c.name == limits.c.name, limit_holds.c.key == limits.c.key)
    waiting = (limit_waits.c.name == limits.c.name, limit_waits.c.key == limits.c.key)
    until = limit_waits.c.called_until
    is_woken = (*waiting, WAS_WOKEN, until > now, until <= now + MAX_RESERVED)
    in_use = select(func.count()).where(*is_held, limit_holds.c.expires_at > now)
    tokens = func.coalesce(func.sum(limit_waits.c.tokens), 0)
    # The first of an index, where a minimum would read all of them.
    first = select(limit_waits.c.rank).where(*waiting, *_may_be_woken(now))
    return _select_kind(
        "limit",
        name=limits.c.name,
        key=limits.c.key,
        in_use=in_use.scalar_subquery(),
        reserved=select(func.count()).where(*is_woken).scalar_subquery(),
        reserved_tokens=select(tokens).where(*is_woken).scalar_subquery(),
        now=now,
        first_rank=first.order_by(*IN_ORDER).limit(1).scalar_subquery(),
    )


def _select_requesting(dialect: str) -> list[Select[Any]]:
    """Select the waits of the requesting jobs, and their rows in the table of jobs."""
    waits = _select_kind(
        "wait",
        job_id=limit_waits.c.job_id,
        name=limit_waits.c.name,
        key=limit_waits.c.key,
        tokens=limit_waits.c.tokens,
        times=limit_waits.c.times,
        rank=limit_waits.c.rank,
        since=limit_waits.c.since,
        called_until=limit_waits.c.called_until,
    )
    job_rows = _select_kind(
        "job",
        job_id=jobs.c.id,
        state=jobs.c.state,
        redrives=jobs.c.redrives,
        attempts=jobs.c.attempts,
    )
    return [
        waits.where(among_listed(dialect, limit_waits.c.job_id, "requesting")),
        job_rows.where(among_listed(dialect, jobs.c.id, "requesting")),
    ]


def _select_holds(dialect: str) -> Select[Any]:
    part = _select_kind(
        "hold",
        hold=limit_holds.c.hold,
        job_id=limit_holds.c.job_id,
        name=limit_holds.c.name,
        key=limit_holds.c.key,
        started_second=limit_holds.c.second,
        tokens=limit_holds.c.tokens,
        expires_at=limit_holds.c.expires_at,
    )
    is_listed = among_listed(dialect, limit_holds.c.hold, "holds")
    return part.where(or_(is_listed, among_listed(dialect, limit_holds.c.job_id, "claimed")))


def _select_kind(kind: str, **values: Any) -> Select[Any]:
    """Select rows of one kind for the union, with null in the columns that the kind does not
    have."""
    values["kind"] = literal_column(f"'{kind}'", Text)
    return select(
        *(
            (values[name] if name in values else cast(null(), column_type)).label(name)
            for name, column_type in _COLUMNS.items()
        )
    )


def _may_be_woken(now: ColumnElement[float]) -> tuple[ColumnElement[bool], ...]:
    return (limit_waits.c.call_after <= now, limit_waits.c.body.is_not(None))


def _has_listed_id(dialect: str) -> ColumnElement[bool]:
    """Return the condition that a limit is one of those in the parameters of `_id_parameters`."""
    if dialect == "sqlite":
        pair = func.json_each(bindparam("limit_ids", type_=Text)).table_valued("value")
        limit_ids = select(
            func.json_extract(pair.c.value, "$[0]"), func.json_extract(pair.c.value, "$[1]")
        )
    else:
        arrays = (bindparam(each, type_=ARRAY(Text)) for each in ("names", "keys"))
        pair = func.unnest(*arrays).table_valued(column("name", Text), column("key", Text))
        limit_ids = select(*pair.render_derived("wanted").c)
    return tuple_(limits.c.name, limits.c.key).in_(limit_ids)


def _id_parameters(dialect: str, limit_ids: Sequence[LimitId]) -> dict[str, Any]:
    if dialect == "sqlite":
        return {"limit_ids": json.dumps(limit_ids)}
    return {"names": [name for name, _ in limit_ids], "keys": [key for _, key in limit_ids]}
