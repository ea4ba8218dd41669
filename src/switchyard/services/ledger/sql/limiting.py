"""Taking room in named limits and giving it back: many jobs in one transaction.

Room that comes free goes to those that have waited longest: they are *called*, which keeps their
room for some seconds, and whoever calls them sends them to their queue. The row of a limit is
locked by whoever changes anything of it; several of them always in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Row,
    Select,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from switchyard.services.ledger.sql.dialect import clock, db_now, insert_into, is_sqlite
from switchyard.services.ledger.sql.limit_tables import limit_holds, limit_waits, limits
from switchyard.services.ledger.sql.tables import jobs
from switchyard.services.records.limits import (
    Called,
    LimitSize,
    Need,
    NoRoom,
    NotToRun,
    RateWindow,
    RoomAnswer,
    RoomGiven,
    RoomRequest,
    RoomReturn,
    put_off,
)
from switchyard.services.records.states import FINISHED, State

CALLED_FOR = 5.0
"""Seconds for which room is kept for a job that was called."""
LONGEST_CALL = 300.0
"""Seconds until a job is called again that does not come, as its queue is long, or nobody works it:
twice as long each time, up to this. Meanwhile it stands in nobody's way."""
CALLED_AT_ONCE = 20
"""Jobs that are called together at most."""

RoomChange = RoomRequest | RoomReturn

_JOB = tuple(jobs.c[name] for name in ("id", "state", "redrives", "attempts"))
_CALL = tuple(limit_waits.c[name] for name in ("job_id", "queue", "tokens", "calls", "body"))
_WAIT = tuple(column for column in limit_waits.c if column.name != "body")


@dataclass(slots=True)
class LockedLimit:
    """One limit within a transaction that has locked it."""

    connection: Connection
    need: Need
    now: float
    window: RateWindow
    in_use: int
    kept: int
    """Jobs that were called, and not come yet."""
    kept_tokens: int
    called: list[Called] = field(default_factory=list)
    _nobody_waits: bool = False
    """So far as this transaction knows."""

    @classmethod
    def all_locked(
        cls, connection: Connection, needs: Mapping[tuple[str, str], Need]
    ) -> dict[tuple[str, str], LockedLimit]:
        """Those of the needs, by name and key: nobody else changes them until the end of the
        transaction. In two statements: each gives the interpreter away, which is long in coming
        back while the event loop is busy."""
        places = sorted(needs)
        wanted = tuple_(limits.c.name, limits.c.key).in_(places)
        query = select(limits.c.name, limits.c.key, limits.c.bins).where(wanted)
        if not is_sqlite(connection):
            query = query.order_by(limits.c.name, limits.c.key).with_for_update()
        rows = connection.execute(query).all()
        if len(rows) < len(places):
            new = [{"name": n, "key": k, "bins": "[]", "updated_at": 0.0} for n, k in places]
            connection.execute(insert_into(connection, limits).on_conflict_do_nothing(), new)
            rows = connection.execute(query).all()
        # Only now: what was counted before the lock would be old.
        counts = {
            (row.name, row.key): row for row in connection.execute(_counts(connection, wanted))
        }
        found = {}
        for row in rows:
            count = counts[row.name, row.key]
            found[row.name, row.key] = cls(
                connection=connection,
                need=needs[row.name, row.key],
                now=count.now,
                window=RateWindow.load(row.bins, count.now),
                in_use=int(count.in_use),
                kept=int(count.kept),
                kept_tokens=int(count.kept_tokens),
            )
        return {place: found[place] for place in places}

    @property
    def room(self) -> LimitSize:
        return self.need.room

    def end(self, hold: Row[Any], used_tokens: int | None) -> None:
        """A job has ended, and used so many tokens; None: those that were estimated."""
        if hold.expires_at > self.now:
            self.in_use -= 1
        if used_tokens is not None and self.room.tokens_per_minute is not None:
            more = used_tokens - hold.tokens
            self.window = self.window.corrected(hold.second, self.now, more)

    def lacks(self, tokens: int) -> str | None:
        """Why one job more can't run now; None when it can."""
        most = self.room.concurrency
        if most is not None and self.in_use + self.kept >= most:
            return f"{self.in_use:,} of {most:,} are running"
        wait = self.window.wait(self.now, self.room, self.kept + 1, self.kept_tokens + tokens)
        return self._why_rates() if wait else None

    def _why_rates(self) -> str:
        parts = []
        if self.room.per_minute is not None:
            parts.append(f"{self.window.jobs:,} of {self.room.per_minute:,} started")
        if self.room.tokens_per_minute is not None:
            most = self.room.tokens_per_minute
            parts.append(f"{self.window.tokens:,} of {most:,} tokens were used")
        return f"{' and '.join(parts)} in the last minute"

    def call(self, before: float | None, without: Collection[str]) -> None:
        """Call those that have waited longest, as far as there is room; only those that have
        waited since `before`, and none of `without`, who are here."""
        if self._nobody_waits or self.lacks(0) is not None:
            return
        query = select(*_CALL).where(
            *_waits_of(self.need),
            limit_waits.c.call_after <= self.now,
            limit_waits.c.body.is_not(None),
        )
        if before is not None:
            query = query.where(limit_waits.c.since < before)
        query = query.order_by(limit_waits.c.since, limit_waits.c.job_id)
        rows = self.connection.execute(query.limit(CALLED_AT_ONCE + len(without))).all()
        self._nobody_waits = before is None and not rows
        for row in rows:
            if row.job_id in without:
                continue
            if self.lacks(row.tokens) is not None:
                break
            self.kept += 1
            self.kept_tokens += row.tokens
            self.called.append(_called(self.connection, row, self.now))


class RoomBatch:
    """What many callers ask of limits, in one transaction: each limit is loaded and locked once,
    and what becomes of each job is decided in memory."""

    def __init__(self, connection: Connection, changes: Sequence[RoomChange]) -> None:
        self._connection = connection
        self._changes = changes
        self._takes = [each for each in changes if isinstance(each, RoomRequest)]
        self._here = {each.job_id for each in self._takes}
        needs = {(need.name, need.key): need for each in changes for need in each.needs}
        self._limits = LockedLimit.all_locked(connection, needs)
        self._holds: list[dict[str, Any]] = []
        self._new_waits: dict[str, dict[str, Any]] = {}
        self._no_waits: set[str] = set()
        self._waits: Mapping[str, Row[Any]] = {}
        self._jobs: Mapping[str, Row[Any]] = {}

    def run(self) -> list[RoomAnswer]:
        """The answers, in order. Those that have room now stand in the first."""
        self._end_holds([each for each in self._changes if isinstance(each, RoomReturn)])
        answers: dict[str, RoomAnswer] = {}
        if self._takes:
            self._load()
            answers = {each.hold: self._take(each) for each in sorted(self._takes, key=self._turn)}
        for limit in self._limits.values():
            limit.call(None, self._here)
        self._write()
        found = [answers.get(each.hold, RoomGiven()) for each in self._changes]
        called = tuple(each for limit in self._limits.values() for each in limit.called)
        return [replace(found[0], called=called), *found[1:]]

    # --- what ends --------------------------------------------------------------------------

    def _end_holds(self, returns: Sequence[RoomReturn]) -> None:
        if not returns:
            return
        used = {each.hold: each.used_tokens for each in returns}
        mine = limit_holds.c.hold.in_(sorted(used))
        for row in self._connection.execute(select(limit_holds).where(mine)).all():
            limit = self._limits.get((row.name, row.key))
            if limit is not None:
                limit.end(row, used[row.hold])
        self._connection.execute(delete(limit_holds).where(mine))

    # --- what begins ------------------------------------------------------------------------

    def _load(self) -> None:
        ids = sorted(self._here)
        query = select(*_WAIT).where(limit_waits.c.job_id.in_(ids))
        self._waits = {row.job_id: row for row in self._connection.execute(query)}
        known = select(*_JOB).where(jobs.c.id.in_(ids))
        found = self._connection.execute(known)
        self._jobs = {row.id: row for row in found}
        for wait in self._waits.values():
            limit = self._limits.get((wait.name, wait.key))
            if limit is not None and wait.called_until > limit.now:
                # What was kept for a job is not in its own way.
                limit.kept -= 1
                limit.kept_tokens -= wait.tokens

    def _turn(self, request: RoomRequest) -> tuple[bool, bool, float]:
        """First those that are claimed, then those that were called, then who has waited longest,
        and then the others."""
        wait = self._waits.get(request.job_id)
        if wait is None:
            return (not request.claimed, True, float("inf"))
        return (not request.claimed, wait.called_until == 0, wait.since)

    def _take(self, request: RoomRequest) -> RoomAnswer:
        if not request.claimed and not self._is_to_run(request):
            self._no_waits.add(request.job_id)
            return NotToRun()
        limits = [self._limits[need.name, need.key] for need in request.needs]
        taken_over = request.claimed and _drop_holds(self._connection, request.job_id)
        if not taken_over:
            wait = self._waits.get(request.job_id)
            for limit in limits:
                if wait is None or wait.called_until == 0:
                    limit.call(None if wait is None else wait.since, self._here)
            for limit, need in zip(limits, request.needs, strict=True):
                if (why := limit.lacks(need.tokens)) is not None:
                    return self._put_off(request, limit, need, why)
        for limit, need in zip(limits, request.needs, strict=True):
            limit.in_use += 1
            if not taken_over:
                limit.window = limit.window.plus(limit.now, 1, need.tokens)
            self._holds.append(
                {
                    "hold": request.hold,
                    "name": need.name,
                    "key": need.key,
                    "job_id": request.job_id,
                    "holder": request.holder,
                    "second": int(limit.now),
                    "tokens": need.tokens,
                    "expires_at": limit.now + request.life,
                }
            )
        self._no_waits.add(request.job_id)
        return RoomGiven()

    def _is_to_run(self, request: RoomRequest) -> bool:
        """Whether a claim may succeed; the claim itself decides. Nobody takes room for a copy of a
        job that runs, or has ended, or is here twice."""
        if request.job_id in self._no_waits or request.job_id in self._new_waits:
            return False
        row = self._jobs.get(request.job_id)
        if row is None:
            return True
        if (request.redrives, request.attempts) < (row.redrives, row.attempts):
            return False
        if row.state == State.DEAD:
            return bool(request.redrives > row.redrives)
        return row.state != State.RUNNING and row.state not in FINISHED

    def _put_off(self, request: RoomRequest, limit: LockedLimit, need: Need, why: str) -> NoRoom:
        wait = self._waits.get(request.job_id)
        times = 0 if wait is None else wait.times
        since = limit.now if wait is None else wait.since
        level = put_off(request, times)
        self._new_waits[request.job_id] = {
            "job_id": request.job_id,
            "name": need.name,
            "key": need.key,
            "queue": request.queue,
            "tokens": need.tokens,
            "since": since,
            "times": times + 1,
            "back_at": limit.now + level,
            "expires_at": request.expires_at,
            "calls": 0,
            "called_until": 0.0,
            "call_after": 0.0,
            "body": request.body,
        }
        return NoRoom(need.name, need.key, why, level)

    # --- what is kept -----------------------------------------------------------------------

    def _write(self) -> None:
        connection = self._connection
        _store(connection, self._limits.values())
        if self._holds:
            connection.execute(insert_into(connection, limit_holds), self._holds)
        if self._new_waits:
            new = insert_into(connection, limit_waits)
            names = [column.name for column in limit_waits.c if column.name != "job_id"]
            changed = {name: new.excluded[name] for name in names}
            upsert = new.on_conflict_do_update(index_elements=["job_id"], set_=changed)
            connection.execute(upsert, list(self._new_waits.values()))
        if gone := sorted(self._no_waits & set(self._waits)):
            connection.execute(delete(limit_waits).where(limit_waits.c.job_id.in_(gone)))


def call_waiting(connection: Connection, at_most: int) -> list[Called]:
    """Those that wait and have room, as a rate or a lease has run out; and those that have grown
    too old, which their workers say. The limits that were looked at longest ago come first."""
    now = db_now(connection)
    old = select(*_CALL).where(limit_waits.c.expires_at <= now, limit_waits.c.call_after <= now)
    rows = connection.execute(old.where(limit_waits.c.body.is_not(None)).limit(at_most)).all()
    called = [_called(connection, row, now) for row in rows]
    waited_for = (
        select(limit_waits.c.job_id)
        .where(limit_waits.c.name == limits.c.name, limit_waits.c.key == limits.c.key)
        .exists()
    )
    query = select(limits).where(waited_for).order_by(limits.c.updated_at).limit(at_most)
    needs = {
        (row.name, row.key): Need(
            row.name,
            row.key,
            LimitSize(row.concurrency, row.per_minute, row.tokens_per_minute),
        )
        for row in connection.execute(query).all()
    }
    if needs:
        locked = LockedLimit.all_locked(connection, needs)
        for limit in locked.values():
            limit.call(None, ())
            called += limit.called
        _store(connection, locked.values())
    return called


def _called(connection: Connection, row: Row[Any], now: float) -> Called:
    """Note that a job is called: its room is kept for it."""
    pause = min(CALLED_FOR * 2.0 ** min(row.calls, 30), LONGEST_CALL)
    connection.execute(
        update(limit_waits)
        .where(limit_waits.c.job_id == row.job_id)
        .values(
            called_until=now + CALLED_FOR, call_after=now + pause, calls=limit_waits.c.calls + 1
        )
    )
    return Called(row.job_id, row.queue, row.body)


def _drop_holds(connection: Connection, job_id: str) -> bool:
    """Whether another process had room for the job: it has died, and its room goes over."""
    gone = connection.execute(delete(limit_holds).where(limit_holds.c.job_id == job_id))
    return gone.rowcount > 0


def _store(connection: Connection, found: Iterable[LockedLimit]) -> None:
    changed: dict[str, Any] = {
        "concurrency": bindparam("new_concurrency"),
        "per_minute": bindparam("new_per_minute"),
        "tokens_per_minute": bindparam("new_tokens_per_minute"),
        "bins": bindparam("new_bins"),
        "updated_at": bindparam("new_updated_at"),
    }
    mine = (limits.c.name == bindparam("of_name"), limits.c.key == bindparam("of_key"))
    connection.execute(
        update(limits).where(*mine).values(changed),
        [
            {
                "of_name": each.need.name,
                "of_key": each.need.key,
                "new_concurrency": each.room.concurrency,
                "new_per_minute": each.room.per_minute,
                "new_tokens_per_minute": each.room.tokens_per_minute,
                "new_bins": each.window.dump(),
                "new_updated_at": each.now,
            }
            for each in found
        ],
    )


def _counts(connection: Connection, wanted: ColumnElement[bool]) -> Select[Any]:
    """What runs, and what was called, of each limit; and the time."""
    now: ColumnElement[float] = literal_column(clock(connection), Double)
    held = (limit_holds.c.name == limits.c.name, limit_holds.c.key == limits.c.key)
    waits = (
        limit_waits.c.name == limits.c.name,
        limit_waits.c.key == limits.c.key,
        limit_waits.c.called_until > now,
    )
    in_use = select(func.count()).where(*held, limit_holds.c.expires_at > now)
    tokens = func.coalesce(func.sum(limit_waits.c.tokens), 0)
    return select(
        limits.c.name,
        limits.c.key,
        now.label("now"),
        in_use.scalar_subquery().label("in_use"),
        select(func.count()).where(*waits).scalar_subquery().label("kept"),
        select(tokens).where(*waits).scalar_subquery().label("kept_tokens"),
    ).where(wanted)


def _waits_of(need: Need) -> tuple[Any, ...]:
    return (limit_waits.c.name == need.name, limit_waits.c.key == need.key)
