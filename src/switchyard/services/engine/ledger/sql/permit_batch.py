"""Grant and release permits of named limits, for many jobs in one transaction.

A free permit goes to the most urgent job that waits, by lane and priority, and of those to the one
that has waited longest. That job is *woken* (`called_…` in the columns): the permit is reserved for
it for some seconds, and the caller sends it to its queue. Every change locks the row of its limit;
several rows are always locked in the same order. The statements are in `limit_reading` and
`limit_writing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, select

from switchyard.services.engine.ledger.sql.dialect import db_now
from switchyard.services.engine.ledger.sql.limit_reading import read_locked
from switchyard.services.engine.ledger.sql.limit_writing import MAX_RESERVED, PermitWrites
from switchyard.services.engine.ledger.sql.locked_limits import LockedLimit, PermitQueue
from switchyard.services.engine.ledger.sql.tables import limit_waits, limits
from switchyard.services.engine.records.limits import (
    LimitSize,
    NotRunnable,
    PermitAnswer,
    PermitDemand,
    PermitGranted,
    PermitRefused,
    PermitReleased,
    PermitRequest,
    PermitReturn,
    WokenJob,
    backoff_level,
)
from switchyard.services.engine.records.states import FINISHED, State

PermitChange = PermitRequest | PermitReturn

ORDER_EPSILON = 1e-6
"""Seconds between the recorded waits of two jobs of one transaction, to keep their order. A whole
batch of them is less than a transaction takes."""


class PermitBatch:
    """Many callers' requests to limits, in one transaction: each limit is loaded and locked once,
    and the result for each job is decided in memory."""

    def __init__(self, connection: Connection, changes: Sequence[PermitChange]) -> None:
        self._connection = connection
        self._changes = changes
        self._requests = [each for each in changes if isinstance(each, PermitRequest)]
        self._requesting = {each.job_id for each in self._requests}
        self._writes = PermitWrites()
        self._new_waits: dict[str, dict[str, Any]] = {}
        self._jobs_not_waiting: set[str] = set()
        needs = {(need.name, need.key): need for each in changes for need in each.needs}
        self._rows = read_locked(
            connection,
            needs,
            requesting=self._requesting,
            claimed={each.job_id for each in self._requests if each.claimed},
            holds={each.hold for each in changes if isinstance(each, PermitReturn)},
        )
        self._limits = {
            limit_id: LockedLimit.from_rows(needs[limit_id], self._rows)
            for limit_id in sorted(needs)
        }
        self._queue = PermitQueue(connection, self._limits, self._requesting)

    def run(self) -> list[PermitAnswer]:
        """Decide all requests. Return the results in order; the first one lists the woken jobs."""
        returns = {
            each.hold: each.used_tokens for each in self._changes if isinstance(each, PermitReturn)
        }
        self._release_holds([row for row in self._rows.holds if row.hold in returns], returns)
        for wait in self._rows.waits.values():
            limit = self._limits.get((wait.name, wait.key))
            if limit is not None and 0 < wait.called_until - limit.now <= MAX_RESERVED:
                # A permit reserved for a job must not count against that job.
                limit.reserved -= 1
                limit.reserved_tokens -= wait.tokens
        results = {
            each.hold: self._decide(each) for each in sorted(self._requests, key=self._urgency)
        }
        for limit in self._limits.values():
            self._queue.wake(limit)
        woken = self._write()
        results_in_order = [
            self._release_result(each) if isinstance(each, PermitReturn) else results[each.hold]
            for each in self._changes
        ]
        first, *others = results_in_order
        return [replace(first, woken=tuple(woken)), *others]

    # --- returns --------------------------------------------------------------------------

    def _release_holds(self, holds: Sequence[Row[Any]], used: Mapping[str, int | None]) -> None:
        for row in holds:
            self._writes.ended_holds.append(row.hold)
            limit = self._limits.get((row.name, row.key))
            if limit is not None:
                limit.release(row, used.get(row.hold))

    def _take_over_holds(self, job_id: str) -> bool:
        """End the holds that a dead process had for the job, for new ones in their place; return
        False where it had none."""
        ended = set(self._writes.ended_holds)
        held = [row for row in self._rows.holds if row.job_id == job_id and row.hold not in ended]
        self._release_holds(held, {})
        return bool(held)

    def _release_result(self, change: PermitReturn) -> PermitReleased:
        limits = [self._limits[need.name, need.key] for need in change.needs]
        return PermitReleased(any(each.somebody_waits or each.woken for each in limits))

    # --- requests ------------------------------------------------------------------------

    def _urgency(self, request: PermitRequest) -> tuple[bool, bool, tuple[int, float]]:
        """Return the sort key of a request: claimed jobs first, then woken ones, then the others by
        their place."""
        wait = self._rows.waits.get(request.job_id)
        was_woken = wait is not None and wait.called_until != 0
        return (not request.claimed, not was_woken, self._place(request))

    def _place(self, request: PermitRequest) -> tuple[int, float]:
        """Return the rank of a job, and since when it waits: a new one comes after all others of
        its rank."""
        wait = self._rows.waits.get(request.job_id)
        return (request.rank, float("inf") if wait is None else wait.since)

    def _decide(self, request: PermitRequest) -> PermitAnswer:
        if not request.claimed and not self._may_run(request):
            self._jobs_not_waiting.add(request.job_id)
            return NotRunnable()
        limits = [self._limits[need.name, need.key] for need in request.needs]
        taken_over = request.claimed and self._take_over_holds(request.job_id)
        if not taken_over:
            wait = self._rows.waits.get(request.job_id)
            for limit in limits:
                if wait is None or wait.called_until == 0:
                    self._queue.wake(limit, self._place(request))
            for limit, need in zip(limits, request.needs, strict=True):
                if (reason := limit.refusal(need.tokens)) is not None:
                    return self._enqueue(request, limit, need, reason)
        for limit, need in zip(limits, request.needs, strict=True):
            limit.in_use += 1
            if not taken_over:
                limit.window = limit.window.plus(limit.now, 1, need.tokens)
            self._writes.holds.append(
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
        self._jobs_not_waiting.add(request.job_id)
        return PermitGranted()

    def _may_run(self, request: PermitRequest) -> bool:
        """Tell whether the job's claim may succeed; the claim itself decides. A copy of a job that
        runs, has ended, or is in this batch twice gets no permit."""
        if request.job_id in self._jobs_not_waiting or request.job_id in self._new_waits:
            return False
        row = self._rows.jobs.get(request.job_id)
        if row is None:
            return True
        state, redrives, attempts = row.state, row.redrives, row.attempts
        if (request.redrives, request.attempts) < (redrives, attempts):
            return False
        if state == State.DEAD:
            return bool(request.redrives > redrives)
        return state != State.RUNNING and state not in FINISHED

    def _enqueue(
        self, request: PermitRequest, limit: LockedLimit, need: PermitDemand, reason: str
    ) -> PermitRefused:
        wait = self._rows.waits.get(request.job_id)
        times = 0 if wait is None else wait.times
        # Jobs of one transaction keep their order, too.
        since = limit.now + len(self._new_waits) * ORDER_EPSILON if wait is None else wait.since
        delay = backoff_level(request, times)
        self._new_waits[request.job_id] = {
            "job_id": request.job_id,
            "name": need.name,
            "key": need.key,
            "queue": request.queue,
            "tokens": need.tokens,
            "rank": request.rank,
            "since": since,
            "times": times + 1,
            "back_at": limit.now + delay,
            "expires_at": request.expires_at,
            "calls": 0,
            "called_until": 0.0,
            "call_after": 0.0,
            "body": request.body,
        }
        return PermitRefused(need.name, need.key, reason, delay)

    # --- writing -----------------------------------------------------------------------

    def _write(self) -> list[WokenJob]:
        writes = self._writes
        writes.limits = [each.row() for each in self._limits.values() if each.has_changed()]
        writes.waits = list(self._new_waits.values())
        # Where a job was put off, a second copy of it must not end its wait.
        gone_waits = self._jobs_not_waiting.intersection(self._rows.waits).difference(
            self._new_waits
        )
        writes.ended_waits = sorted(gone_waits)
        for limit in self._limits.values():
            writes.woken += limit.woken
        return writes.execute(self._connection, self._rows.now)


def wake_waiting(connection: Connection, at_most: int) -> list[WokenJob]:
    """Wake jobs that may run now, because the minute of a rate or the lease of a hold is over. Also
    wake expired jobs, which their workers then end. The limits that were examined longest ago come
    first."""
    now = db_now(connection)
    expired = select(limit_waits.c.job_id).where(
        limit_waits.c.expires_at <= now,
        limit_waits.c.call_after <= now,
        limit_waits.c.body.is_not(None),
    )
    expired_ids = list(connection.execute(expired.limit(at_most)).scalars())
    woken = PermitWrites(woken=expired_ids).execute(connection, now)
    is_waited_for = (
        select(limit_waits.c.job_id)
        .where(limit_waits.c.name == limits.c.name, limit_waits.c.key == limits.c.key)
        .exists()
    )
    query = select(limits).where(is_waited_for).order_by(limits.c.updated_at).limit(at_most)
    needs = {
        (row.name, row.key): PermitDemand(
            row.name,
            row.key,
            LimitSize(row.concurrency, row.per_minute, row.tokens_per_minute),
        )
        for row in connection.execute(query).all()
    }
    if needs:
        rows = read_locked(connection, needs)
        locked = {
            limit_id: LockedLimit.from_rows(needs[limit_id], rows) for limit_id in sorted(needs)
        }
        queue = PermitQueue(connection, locked, ())
        writes = PermitWrites()
        for limit in locked.values():
            queue.wake(limit)
            writes.limits.append(limit.row())
            writes.woken += limit.woken
        woken += writes.execute(connection, rows.now)
    return woken
