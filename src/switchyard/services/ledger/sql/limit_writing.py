"""What a transaction writes of named limits: on PostgreSQL in one statement, as each would be a
journey with the limits locked; on SQLite, which is no journey away, in as many as there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ARRAY,
    Connection,
    Delete,
    Insert,
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
from sqlalchemy.sql.selectable import TableValuedAlias

from switchyard.services.ledger.sql.dialect import among, insert_into, is_sqlite
from switchyard.services.ledger.sql.limit_tables import limit_holds, limit_waits, limits
from switchyard.services.records.limits import Called

CALLED_FOR = 5.0
"""Seconds for which room is kept for a job that was called."""
LONGEST_CALL = 300.0
"""Seconds until a job is called again that does not come, as its queue is long, or nobody works it:
twice as long each time, up to this. Meanwhile it stands in nobody's way."""

_Values = dict[str, Any]
_DOUBLED_AT_MOST = 6
"""2 to this power times CALLED_FOR is more than LONGEST_CALL."""


@dataclass
class RoomWrites:
    """All that one transaction changes. No row stands in two of these."""

    limits: list[_Values] = field(default_factory=list)
    """Whole rows."""
    ended: list[str] = field(default_factory=list)
    """Holds that are given back."""
    holds: list[_Values] = field(default_factory=list)
    """Whole rows, new."""
    waits: list[_Values] = field(default_factory=list)
    """Whole rows of jobs that wait from now on, or still."""
    waits_no_more: list[str] = field(default_factory=list)
    """Jobs."""
    called: list[str] = field(default_factory=list)
    """Jobs for which room is kept, in order."""

    def execute(self, connection: Connection, now: float) -> list[Called]:
        """Those that are called, and wait still."""
        done: list[Insert | Update | Delete] = []
        if self.ended:
            done.append(
                delete(limit_holds).where(among(connection, limit_holds.c.hold, self.ended))
            )
        if self.waits_no_more:
            mine = among(connection, limit_waits.c.job_id, self.waits_no_more)
            done.append(delete(limit_waits).where(mine))
        if is_sqlite(connection):
            self._write_rows(connection)
        else:
            done += self._written_rows(connection)
        if self.called:
            done.append(_call(connection, self.called, now))
        rows = _execute(connection, done) if done else []
        called = {row.job_id: Called(row.job_id, row.queue, row.body) for row in rows}
        return [called[each] for each in self.called if each in called]

    def _write_rows(self, connection: Connection) -> None:
        if self.limits:
            changed: dict[str, Any] = {
                name: bindparam(f"new_{name}") for name in _changing(limits, "name", "key")
            }
            mine = (limits.c.name == bindparam("new_name"), limits.c.key == bindparam("new_key"))
            rows = [{f"new_{name}": value for name, value in row.items()} for row in self.limits]
            connection.execute(update(limits).where(*mine).values(changed), rows)
        if self.holds:
            connection.execute(insert_into(connection, limit_holds), self.holds)
        if self.waits:
            connection.execute(_kept(insert_into(connection, limit_waits)), self.waits)

    def _written_rows(self, connection: Connection) -> list[Insert | Update | Delete]:
        done: list[Insert | Update | Delete] = []
        if self.limits:
            new = _rows(limits, self.limits)
            changed = {name: new.c[name] for name in _changing(limits, "name", "key")}
            mine = (limits.c.name == new.c.name, limits.c.key == new.c.key)
            done.append(update(limits).where(*mine).values(changed))
        for table, rows in ((limit_holds, self.holds), (limit_waits, self.waits)):
            if rows:
                names = [each.name for each in table.c]
                new = _rows(table, rows)
                insert = insert_into(connection, table).from_select(names, new.select())
                done.append(_kept(insert) if table is limit_waits else insert)
        return done


def _changing(table: Table, *keys: str) -> list[str]:
    return [each.name for each in table.c if each.name not in keys]


def _kept(new: Any) -> Any:
    """An INSERT of those that wait: who stands there already stands there as now."""
    changed = {name: new.excluded[name] for name in _changing(limit_waits, "job_id")}
    return new.on_conflict_do_update(index_elements=["job_id"], set_=changed)


def _rows(table: Table, rows: Sequence[_Values]) -> TableValuedAlias:
    """Rows of a table as one array for each of its columns: PostgreSQL."""
    arrays = [literal([row[each.name] for row in rows], ARRAY(each.type)) for each in table.c]
    columns = [column(each.name, each.type) for each in table.c]
    return func.unnest(*arrays).table_valued(*columns).render_derived(f"new_{table.name}")


def _call(connection: Connection, called: Sequence[str], now: float) -> Update:
    """Note that jobs are called: their room is kept for them."""
    calls = limit_waits.c.calls
    times = case((calls < _DOUBLED_AT_MOST, calls), else_=_DOUBLED_AT_MOST)
    pause = CALLED_FOR * literal(1).bitwise_lshift(times)
    return (
        update(limit_waits)
        .where(among(connection, limit_waits.c.job_id, called))
        .values(
            called_until=literal(now + CALLED_FOR),
            call_after=literal(now) + case((pause < LONGEST_CALL, pause), else_=LONGEST_CALL),
            calls=calls + 1,
        )
        .returning(limit_waits.c.job_id, limit_waits.c.queue, limit_waits.c.body)
    )


def _execute(connection: Connection, done: Sequence[Insert | Update | Delete]) -> Sequence[Any]:
    """Run them all; the answer of the last, if it gives one."""
    *first, last = done
    if is_sqlite(connection):
        for each in first:
            connection.execute(each)
    else:
        last = last.add_cte(*(each.cte(f"part_{n}") for n, each in enumerate(first)))
    result = connection.execute(last)
    return result.all() if result.returns_rows else []
