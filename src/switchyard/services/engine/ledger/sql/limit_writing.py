"""Write a transaction's changes of named limits: on PostgreSQL in one statement, as each is a round
trip with the limits locked; on SQLite, without round trips, in one for each kind of change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Delete,
    Double,
    Insert,
    Row,
    Table,
    Update,
    bindparam,
    case,
    column,
    delete,
    func,
    literal,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.selectable import TableValuedAlias

from switchyard.services.engine.ledger.sql.dialect import among_listed, is_sqlite, list_value
from switchyard.services.engine.ledger.sql.tables import limit_holds, limit_waits, limits
from switchyard.services.engine.records.limits import WokenJob

WAKE_TTL = 5.0
"""Seconds for which permits are reserved for a job that was woken (`called_until`)."""
MAX_RESERVED = WAKE_TTL + 1.0
"""Seconds. A reservation that would last longer was made before the clock was set back, and counts
as over."""
MAX_WAKE_TTL = 300.0
"""Longest wait, in seconds, before a woken job that has not asked for its permit is woken again.
The first wait is WAKE_TTL, and each next one is twice as long. Such a job has a long queue, or no
worker; meanwhile others get the permits."""

_Row = dict[str, Any]
_MAX_DOUBLINGS = 6
"""2 to this power times WAKE_TTL is more than MAX_WAKE_TTL."""


@dataclass
class PermitWrites:
    """All changes of one transaction. No row is in two of these lists."""

    limits: list[_Row] = field(default_factory=list)
    """Whole rows of limits."""
    ended_holds: list[str] = field(default_factory=list)
    """Ids of holds that were returned."""
    holds: list[_Row] = field(default_factory=list)
    """Whole rows of new holds."""
    waits: list[_Row] = field(default_factory=list)
    """Whole rows of jobs that wait, new or not."""
    ended_waits: list[str] = field(default_factory=list)
    """Ids of jobs that no longer wait."""
    woken: list[str] = field(default_factory=list)
    """Jobs that are woken, in order: permits are reserved for them."""

    def execute(self, connection: Connection, now: float) -> list[WokenJob]:
        """Write all changes, and return the woken jobs that still wait."""
        lists = {
            "ended_holds": self.ended_holds,
            "ended_waits": self.ended_waits,
            "woken": self.woken,
        }
        tables = {"limits": self.limits, "holds": self.holds, "waits": self.waits}
        dialect = connection.dialect.name
        values: dict[str, Any] = {"now": now}
        values |= {name: list_value(dialect, each) for name, each in lists.items() if each}
        parts = {name for name, each in (*lists.items(), *tables.items()) if each}
        rows: Sequence[Row[Any]] = ()
        if is_sqlite(connection):
            tables["limits"] = [
                {f"limits_{name}": value for name, value in row.items()} for row in self.limits
            ]
            for part in sorted(parts, key=_PARTS.index):
                result = connection.execute(_single_statement(part), tables.get(part) or values)
                rows = result.all() if part == "woken" else ()
        elif parts:
            for name, each in tables.items():
                values |= _row_parameters(name, each)
            result = connection.execute(_combined_statement(frozenset(parts)), values)
            rows = result.all() if self.woken else ()
        woken = {row.job_id: WokenJob(row.job_id, row.queue, row.body) for row in rows}
        return [woken[each] for each in self.woken if each in woken]


# --- the statements: cached, as making one takes longer than running it --------------------------

_PARTS = ("ended_holds", "ended_waits", "limits", "holds", "waits", "woken")
"""Parts of the statement in the order of writing: the last one returns the result."""
_TABLES = {"limits": limits, "holds": limit_holds, "waits": limit_waits}


@cache
def _single_statement(part: str) -> Insert | Update | Delete:
    """Return the statement of one part, for SQLite."""
    match part:
        case "limits":
            # A name may not be that of a column.
            new: dict[str, Any] = {each.name: bindparam(f"limits_{each.name}") for each in limits.c}
            condition = (limits.c.name == new["name"], limits.c.key == new["key"])
            changed: dict[str, Any] = {name: new[name] for name in _changing_columns(limits)}
            return update(limits).where(*condition).values(changed)
        case "holds":
            return sqlite.insert(limit_holds)
        case "waits":
            return _insert_waits(sqlite.insert(limit_waits))
    return _listed_statement("sqlite", part)


@cache
def _combined_statement(parts: frozenset[str]) -> Insert | Update | Delete:
    """Return one statement of all parts, for PostgreSQL; it returns the rows of woken jobs."""
    statements: list[Insert | Update | Delete] = []
    for part in sorted(parts, key=_PARTS.index):
        if part not in _TABLES:
            statements.append(_listed_statement("postgresql", part))
            continue
        table = _TABLES[part]
        new = _row_source(part)
        if part == "limits":
            changed = {name: new.c[name] for name in _changing_columns(limits)}
            condition = (limits.c.name == new.c.name, limits.c.key == new.c.key)
            statements.append(update(limits).where(*condition).values(changed))
        else:
            names = [each.name for each in table.c]
            insert = postgresql.insert(table).from_select(names, new.select())
            statements.append(_insert_waits(insert) if part == "waits" else insert)
    *others, last = statements
    return last.add_cte(*(each.cte(f"part_{n}") for n, each in enumerate(others)))


def _listed_statement(dialect: str, part: str) -> Update | Delete:
    match part:
        case "ended_holds":
            return delete(limit_holds).where(among_listed(dialect, limit_holds.c.hold, part))
        case "ended_waits":
            return delete(limit_waits).where(among_listed(dialect, limit_waits.c.job_id, part))
    return _mark_woken(among_listed(dialect, limit_waits.c.job_id, part))


def _changing_columns(table: Table) -> list[str]:
    return [each.name for each in table.c if not each.primary_key]


def _insert_waits(new: sqlite.Insert | postgresql.Insert) -> Insert:
    """Return an INSERT of waiting jobs that replaces the rows of those that wait already."""
    changed = {name: new.excluded[name] for name in _changing_columns(limit_waits)}
    return new.on_conflict_do_update(index_elements=["job_id"], set_=changed)


def _row_source(part: str) -> TableValuedAlias:
    """Return a FROM item of new rows of a table, made of the arrays of `_row_parameters`."""
    table = _TABLES[part]
    arrays = [bindparam(f"{part}_{each.name}", type_=ARRAY(each.type)) for each in table.c]
    columns = [column(each.name, each.type) for each in table.c]
    return func.unnest(*arrays).table_valued(*columns).render_derived(f"new_{table.name}")


def _row_parameters(part: str, rows: Sequence[_Row]) -> dict[str, list[Any]]:
    return {f"{part}_{each.name}": [row[each.name] for row in rows] for each in _TABLES[part].c}


def _mark_woken(condition: ColumnElement[bool]) -> Update:
    """Record that jobs were woken, and reserve their permits for them."""
    now = bindparam("now", type_=Double)
    calls = limit_waits.c.calls
    times = case((calls < _MAX_DOUBLINGS, calls), else_=_MAX_DOUBLINGS)
    wait = WAKE_TTL * literal(1).bitwise_lshift(times)
    return (
        update(limit_waits)
        .where(condition)
        .values(
            called_until=now + WAKE_TTL,
            call_after=now + case((wait < MAX_WAKE_TTL, wait), else_=MAX_WAKE_TTL),
            calls=calls + 1,
        )
        .returning(limit_waits.c.job_id, limit_waits.c.queue, limit_waits.c.body)
    )
