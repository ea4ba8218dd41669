"""What a transaction has to know of named limits before it decides: in two statements, however many
jobs and limits there are, and a third where somebody waits and there may be room.

Each statement is a journey on PostgreSQL, made with the rows of the limits locked; and on SQLite
each gives the interpreter away, which is long in coming back while the event loop is busy.
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
    clock_of,
    insert_into,
    is_sqlite,
    list_value,
)
from switchyard.services.engine.ledger.sql.limit_tables import (
    WAS_WOKEN,
    limit_holds,
    limit_waits,
    limits,
)
from switchyard.services.engine.ledger.sql.tables import jobs

Place = tuple[str, str]
"""A limit's name and key."""

_COLUMNS: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(("kind", "id", "job", "name", "key"), Text()),
    **dict.fromkeys(("first", "second", "third"), BigInteger()),
    **dict.fromkeys(("at", "until"), Double()),
}
"""Of all that is read in one statement."""


@dataclass
class LockedLimitRows:
    """What was found under the lock."""

    now: float
    """The database's time."""
    bins: Mapping[Place, Row[Any]]
    """The rows of the limits, locked."""
    counts: dict[Place, Row[Any]] = field(default_factory=dict)
    """Of each limit: `first` jobs run, `second` were called and have not come, with `third` tokens;
    `until` is since when the first waits that may be called."""
    waits: dict[str, Row[Any]] = field(default_factory=dict)
    """By job: since `at`, with `first` tokens, put off `second` times, called until `until`."""
    jobs: dict[str, Row[Any]] = field(default_factory=dict)
    """By job: `name` is its state, `first` its redrives, `second` its attempts."""
    holds: list[Row[Any]] = field(default_factory=list)
    """`id`, of `job`, since the second `first`, with `second` tokens, until `until`."""


def read_locked(
    connection: Connection,
    places: Collection[Place],
    *,
    come: Collection[str] = (),
    claimed: Collection[str] = (),
    holds: Collection[str] = (),
) -> LockedLimitRows:
    """Lock these limits until the end of the transaction, always in the same order, and read what
    is known of them, of the jobs that `come`, of what the `claimed` ones hold, and of `holds`."""
    dialect = connection.dialect.name
    wanted = _places(dialect, sorted(places))
    bins = _locked(connection, wanted, places)
    # Only now: what was counted before the lock would be old.
    query = _reading(dialect, bool(come), bool(holds or claimed))
    lists = {"come": come, "claimed": claimed, "holds": holds}
    values = {name: list_value(dialect, sorted(each)) for name, each in lists.items()}
    found = LockedLimitRows(now=0.0, bins=bins)
    for row in connection.execute(query, wanted | values):
        match row.kind:
            case "limit":
                found.counts[row.name, row.key] = row
                found.now = max(found.now, row.at)
            case "wait":
                found.waits[row.id] = row
            case "job":
                found.jobs[row.id] = row
            case _:
                found.holds.append(row)
    return found


def read_waiting(
    connection: Connection, places: Collection[Place], now: float, at_most: int
) -> dict[Place, list[Row[Any]]]:
    """Of each of these limits so many jobs that may be called, who waits longest first."""
    values = {"now": now, "at_most": at_most}
    if is_sqlite(connection):
        # It has no LATERAL, and no journey to save.
        query = _first(bindparam("name"), bindparam("key"))
        return {
            (name, key): list(connection.execute(query, values | {"name": name, "key": key}))
            for name, key in places
        }
    found: dict[Place, list[Row[Any]]] = {place: [] for place in places}
    wanted = _places(connection.dialect.name, sorted(places))
    for row in connection.execute(_first_of_each(), values | wanted):
        found[row.name, row.key].append(row)
    return found


def _locked(
    connection: Connection, wanted: Mapping[str, Any], places: Collection[Place]
) -> dict[Place, Row[Any]]:
    query = _locking(connection.dialect.name)
    rows = connection.execute(query, wanted).all()
    if len(rows) < len(places):
        new = [{"name": n, "key": k, "bins": "[]", "updated_at": 0.0} for n, k in sorted(places)]
        connection.execute(insert_into(connection, limits).on_conflict_do_nothing(), new)
        rows = connection.execute(query, wanted).all()
    return {(row.name, row.key): row for row in rows}


# --- the statements: made once, as that takes longer than to run them ----------------------------


@cache
def _locking(dialect: str) -> Select[Any]:
    query = select(limits).where(_among_places(dialect))
    return query.order_by(limits.c.name, limits.c.key).with_for_update()  # not in SQLite


@cache
def _reading(dialect: str, somebody_comes: bool, with_holds: bool) -> CompoundSelect[Any]:
    now: ColumnElement[float] = literal_column(clock_of(dialect), Double)
    parts = [_counts(now).where(_among_places(dialect))]
    if somebody_comes:
        parts += _comers(dialect)
    if with_holds:
        parts.append(_holds(dialect))
    return union_all(*parts)


@cache
def _first_of_each() -> Select[Any]:
    each = lateral(_first(limits.c.name, limits.c.key), "first")
    return (
        select(limits.c.name, limits.c.key, *each.c)
        .select_from(limits.join(each, true()))
        .where(_among_places("postgresql"))
        .order_by(each.c.since, each.c.job_id)
    )


def _first(name: ColumnElement[str], key: ColumnElement[str]) -> Select[Any]:
    now, at_most = bindparam("now", type_=Double), bindparam("at_most", type_=BigInteger)
    wanted = (limit_waits.c.name == name, limit_waits.c.key == key, *_callable(now))
    query = select(limit_waits.c.job_id, limit_waits.c.tokens, limit_waits.c.since)
    query = query.where(*wanted).order_by(limit_waits.c.since, limit_waits.c.job_id)
    return query.limit(at_most)


def _counts(now: ColumnElement[float]) -> Select[Any]:
    """What runs, and what was called, of each limit; the time; and since when somebody waits."""
    held = (limit_holds.c.name == limits.c.name, limit_holds.c.key == limits.c.key)
    mine = (limit_waits.c.name == limits.c.name, limit_waits.c.key == limits.c.key)
    called = (*mine, WAS_WOKEN, limit_waits.c.called_until > now)
    in_use = select(func.count()).where(*held, limit_holds.c.expires_at > now)
    tokens = func.coalesce(func.sum(limit_waits.c.tokens), 0)
    # The first of an index, where a minimum would read all of them.
    first = select(limit_waits.c.since).where(*mine, *_callable(now))
    return _part(
        "limit",
        name=limits.c.name,
        key=limits.c.key,
        first=in_use.scalar_subquery(),
        second=select(func.count()).where(*called).scalar_subquery(),
        third=select(tokens).where(*called).scalar_subquery(),
        at=now,
        until=first.order_by(limit_waits.c.since).limit(1).scalar_subquery(),
    )


def _comers(dialect: str) -> list[Select[Any]]:
    """The places of those that come among those that wait, and their records."""
    waits = _part(
        "wait",
        id=limit_waits.c.job_id,
        name=limit_waits.c.name,
        key=limit_waits.c.key,
        first=limit_waits.c.tokens,
        second=limit_waits.c.times,
        at=limit_waits.c.since,
        until=limit_waits.c.called_until,
    )
    known = _part(
        "job",
        id=jobs.c.id,
        name=jobs.c.state,
        first=jobs.c.redrives,
        second=jobs.c.attempts,
    )
    return [
        waits.where(among_listed(dialect, limit_waits.c.job_id, "come")),
        known.where(among_listed(dialect, jobs.c.id, "come")),
    ]


def _holds(dialect: str) -> Select[Any]:
    part = _part(
        "hold",
        id=limit_holds.c.hold,
        job=limit_holds.c.job_id,
        name=limit_holds.c.name,
        key=limit_holds.c.key,
        first=limit_holds.c.second,
        second=limit_holds.c.tokens,
        until=limit_holds.c.expires_at,
    )
    mine = among_listed(dialect, limit_holds.c.hold, "holds")
    return part.where(or_(mine, among_listed(dialect, limit_holds.c.job_id, "claimed")))


def _part(kind: str, **values: Any) -> Select[Any]:
    """One of the tables that are read together: what it does not have is null."""
    values["kind"] = literal_column(f"'{kind}'", Text)
    return select(
        *(
            (values[name] if name in values else cast(null(), kept)).label(name)
            for name, kept in _COLUMNS.items()
        )
    )


def _callable(now: ColumnElement[float]) -> tuple[ColumnElement[bool], ...]:
    return (limit_waits.c.call_after <= now, limit_waits.c.body.is_not(None))


def _among_places(dialect: str) -> ColumnElement[bool]:
    """The limits of `_places`: as few parameters, however many they are."""
    if dialect == "sqlite":
        each = func.json_each(bindparam("places", type_=Text)).table_valued("value")
        found = select(
            func.json_extract(each.c.value, "$[0]"), func.json_extract(each.c.value, "$[1]")
        )
    else:
        arrays = (bindparam(each, type_=ARRAY(Text)) for each in ("names", "keys"))
        pair = func.unnest(*arrays).table_valued(column("name", Text), column("key", Text))
        found = select(*pair.render_derived("wanted").c)
    return tuple_(limits.c.name, limits.c.key).in_(found)


def _places(dialect: str, places: Sequence[Place]) -> dict[str, Any]:
    if dialect == "sqlite":
        return {"places": json.dumps(places)}
    return {"names": [name for name, _ in places], "keys": [key for _, key in places]}
