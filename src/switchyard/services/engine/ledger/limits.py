"""Named limits: permits in use, what started in the last minute, and jobs that wait.

A permit in use is a *hold*: short-lived, and renewed by its holder, so that the permits of a killed
worker return automatically. All times are the database's own. What happens within a transaction:
`sql.locked_limits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from sqlalchemy import Connection, and_, delete, func, select, tuple_, update

from switchyard.services.engine.ledger.sql.dialect import db_now
from switchyard.services.engine.ledger.sql.job_operations import JobOperation
from switchyard.services.engine.ledger.sql.permit_batch import PermitChange, wake_waiting
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import (
    IN_ORDER,
    limit_holds,
    limit_waits,
    limits,
)
from switchyard.services.engine.records.limits import (
    LimitReport,
    LimitSize,
    PendingPermit,
    PermitAnswer,
    PermitDemand,
    PermitReleased,
    PermitRequest,
    PermitReturn,
    RateWindow,
    WokenJob,
)
from switchyard.services.engine.records.retention import Removal

FORGOTTEN_AFTER = 600.0
"""Seconds after which a waiting job that has not come back loses its place."""
IDLE_LIMIT_TTL = 3600.0
"""Seconds after which an unused limit is removed: it remembers the last minute only."""


class LimitRepository(Repository):
    """Grants, renews and releases permits, and reports limits. All methods raise LedgerUnavailable
    when the database is away."""

    async def take_permits(self, request: PermitRequest) -> PermitAnswer:
        """Give a job a permit of each of its limits at once, or none."""
        return await self._commit_permit(request)

    async def return_permits(
        self, hold: str, needs: Sequence[PermitDemand], used_tokens: int | None
    ) -> PermitReleased:
        """Return the permits of a job that has ended. `used_tokens`: None for as many as were
        estimated. The caller must send the woken jobs of the result, of this limit or another, to
        their queues."""
        return cast(
            "PermitReleased", await self._commit_permit(PermitReturn(hold, needs, used_tokens))
        )

    async def _commit_permit(self, change: PermitChange) -> PermitAnswer:
        # A cast, as the committer is declared for changes of jobs, and does not look into them.
        return await self._permit_committer.submit(cast("JobOperation[PermitAnswer]", change))

    @write
    def wake_waiting(self, connection: Connection, at_most: int = 100) -> list[WokenJob]:
        """Wake jobs that may run now although no permit was returned: the minute of a rate, or the
        lease of a dead worker is over. Also wake jobs that have expired. The caller must send all
        of them to their queues. Examines `at_most` limits."""
        return wake_waiting(connection, at_most)

    @write
    def renew_permits(self, connection: Connection, holds: Sequence[str], ttl: float) -> int:
        """Renew permits for `ttl` seconds; return the number of permits that still exist, one for
        each limit."""
        renewed = connection.execute(
            update(limit_holds)
            .where(limit_holds.c.hold.in_(holds))
            .values(expires_at=db_now(connection) + ttl)
        )
        return renewed.rowcount

    @write
    def release_permits(self, connection: Connection, holder: str) -> None:
        """Return all permits of a holder whose process ends."""
        statement = delete(limit_holds).where(limit_holds.c.holder == holder)
        connection.execute(statement)

    @write
    def cancel_wait(self, connection: Connection, job_id: str) -> None:
        """Remove a job from those that wait for a limit."""
        statement = delete(limit_waits).where(limit_waits.c.job_id == job_id)
        connection.execute(statement)

    @read
    def limit_wait(self, connection: Connection, job_id: str) -> PendingPermit | None:
        """Return the limit that a job waits for, if it was refused a permit."""
        row = connection.execute(
            select(limit_waits).where(limit_waits.c.job_id == job_id)
        ).one_or_none()
        if row is None:
            return None
        return PendingPermit(row.name, row.key, row.since, row.times, row.back_at)

    @read
    def waiting_for_permits(self, connection: Connection) -> dict[str, int]:
        """Count the jobs that were refused a permit, by the queue that they will go back to."""
        delayed = select(limit_waits.c.queue, func.count()).where(
            limit_waits.c.back_at > db_now(connection)
        )
        rows = connection.execute(delayed.group_by(limit_waits.c.queue))
        return {row[0]: int(row[1]) for row in rows}

    @read
    def limit_reports(self, connection: Connection, at_most: int = 1000) -> list[LimitReport]:
        """Report the limits as they are now, by name and key: those in use or waited for first."""
        now = db_now(connection)
        by_limit = (limit_holds.c.name, limit_holds.c.key)
        held = select(*by_limit, func.count()).where(limit_holds.c.expires_at > now)
        in_use = {
            (row[0], row[1]): int(row[2]) for row in connection.execute(held.group_by(*by_limit))
        }
        condition = (limit_waits.c.name == limits.c.name, limit_waits.c.key == limits.c.key)
        waiting = select(func.count()).where(*condition).scalar_subquery()
        next_tokens = select(limit_waits.c.tokens).where(*condition).order_by(*IN_ORDER).limit(1)
        reports = []
        query = select(
            limits, waiting.label("waiting"), next_tokens.scalar_subquery().label("needs_tokens")
        )
        query = query.order_by(limits.c.updated_at.desc()).limit(at_most)
        for row in connection.execute(query):
            size = LimitSize(row.concurrency, row.per_minute, row.tokens_per_minute)
            window = RateWindow.load(row.bins, now)
            used = in_use.get((row.name, row.key), 0)
            # Where no job waits: one token, the least that a job may need.
            tokens = 1 if row.needs_tokens is None else row.needs_tokens
            next_room: float | None = window.wait(now, size, 1, tokens)
            if size.concurrency is not None and used >= size.concurrency:
                next_room = None
            reports.append(
                LimitReport(
                    name=row.name,
                    key=row.key,
                    size=size,
                    in_use=used,
                    last_minute=window.jobs,
                    tokens_last_minute=window.tokens,
                    waiting=row.waiting,
                    next_room=next_room,
                )
            )
        return sorted(reports, key=lambda each: (each.name, each.key))

    @write
    def forget_idle_limits(self, connection: Connection, *, limit: int) -> Removal:
        """Drop permits that have run out, places of jobs that have not come back, and limits that
        are neither used nor waited for; of each, `limit` at most."""
        watch = Stopwatch(connection)
        now = db_now(connection)
        used = [
            select(table.c.hold if table is limit_holds else table.c.job_id)
            .where(table.c.name == limits.c.name, table.c.key == limits.c.key)
            .exists()
            for table in (limit_holds, limit_waits)
        ]
        idle = and_(limits.c.updated_at <= now - IDLE_LIMIT_TTL, *(~each for each in used))
        removed: Counter[str] = Counter()
        for table, is_over in (
            (limit_holds, limit_holds.c.expires_at <= now),
            (limit_waits, limit_waits.c.back_at <= now - FORGOTTEN_AFTER),
            (limits, idle),
        ):
            key = tuple(table.primary_key.columns)
            keys_to_delete = select(*key).where(is_over).limit(limit)
            deleted = connection.execute(
                delete(table).where(tuple_(*key).in_(keys_to_delete), is_over)
            )
            removed[table.name] = deleted.rowcount
        is_complete = max(removed.values()) < limit
        return Removal(+removed, is_complete, watch.seconds())
