"""Leases: rights that one process at a time holds, such as to be the active scheduler.

The right to run a job is a claim (`services.engine.runtime.claims`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NoReturn

import structlog
from sqlalchemy import Connection, text

from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.engine.ledger.sql.clock import latest_end
from switchyard.services.engine.ledger.sql.dialect import now_sql
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.retention import Removal

Sleep = Callable[[float], Awaitable[None]]
"""Awaited while another process holds the lease, with the seconds until the next try."""

SCHEDULER = "scheduler"
"""The lease of the scheduler that is active."""
DEAD_SCAN = "scan of jobs.dead"
"""The lease of the process that reads through `jobs.dead`, and holds its letters meanwhile."""
LEASE_SECONDS = 6.0
"""Seconds after which the lease of a dead process ends; a living one renews it."""
LEASE_POLL_INTERVAL = 0.1
"""Seconds between polls of a lease that another process holds."""


class LeaseRepository(Repository):
    """Grants and renews leases. Each has a name and at most one holder, by the database's clock.
    All methods raise LedgerUnavailable when the database is away."""

    @write
    def acquire_lease(
        self,
        connection: Connection,
        name: str,
        holder: str,
        ttl: float | None = None,
        *,
        longest: float = math.inf,
    ) -> bool:
        """Take the lease for `ttl` seconds unless another process holds it. Without `ttl`, take it
        for LEASE_SECONDS, for `keeping_lease`. Taking it again renews it. `longest` is the longest
        time in seconds that any holder takes this lease for: see `latest_end`."""
        if ttl is None:
            ttl = longest = LEASE_SECONDS
        now = now_sql(connection)
        taken = connection.execute(
            text(
                f"INSERT INTO leases (name, holder, expires_at) "
                f"VALUES (:name, :holder, {now} + :ttl) "
                "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, "
                "expires_at = excluded.expires_at "
                f"WHERE leases.holder = excluded.holder OR leases.expires_at <= {now} "
                f"OR leases.expires_at > {now} + :most "
                "RETURNING name"
            ),
            {
                "name": name,
                "holder": holder,
                "ttl": ttl,
                "most": latest_end(0.0, longest),
            },
        )
        return taken.first() is not None

    @read
    def lease_remaining(
        self, connection: Connection, name: str, *, longest: float = math.inf
    ) -> float:
        """Return the seconds until a lease runs out, by the database's clock; 0 when nobody holds
        it. `longest` as in `acquire_lease`."""
        query = text(f"SELECT expires_at - {now_sql(connection)} FROM leases WHERE name = :name")
        left = float(connection.scalar(query, {"name": name}) or 0.0)
        return left if 0.0 < left <= latest_end(0.0, longest) else 0.0

    @write
    def renew_lease(self, connection: Connection, name: str, holder: str, ttl: float) -> bool:
        """Renew the lease for `ttl` seconds. False when it ran out or another process has it."""
        now = now_sql(connection)
        renewed_until = connection.execute(
            text(
                f"UPDATE leases SET expires_at = {now} + :ttl "
                f"WHERE name = :name AND holder = :holder AND expires_at > {now} "
                "RETURNING name"
            ),
            {"name": name, "holder": holder, "ttl": ttl},
        )
        return renewed_until.first() is not None

    @write
    def release_lease(self, connection: Connection, name: str, holder: str) -> bool:
        """Release the lease. False when another process has it."""
        deleted = connection.execute(
            text("DELETE FROM leases WHERE name = :name AND holder = :holder RETURNING name"),
            {"name": name, "holder": holder},
        )
        return deleted.first() is not None

    @write
    def drop_old_leases(self, connection: Connection, age: float, *, limit: int) -> Removal:
        """Remove up to `limit` leases that ran out `age` seconds ago or earlier, such as those of
        web sites that are not visited any more."""
        watch = Stopwatch(connection)
        is_old = f"expires_at < {now_sql(connection)} - :age"
        query = text(
            f"DELETE FROM leases WHERE {is_old} AND name IN "
            f"(SELECT name FROM leases WHERE {is_old} LIMIT :most)"
        )
        deleted = connection.execute(query, {"age": age, "most": limit})
        return Removal(
            Counter({"leases": deleted.rowcount}), deleted.rowcount < limit, watch.seconds()
        )

    @asynccontextmanager
    async def holding_lease(self, name: str, wait: Sleep = asyncio.sleep) -> AsyncIterator[None]:
        """Wait until no other process holds the lease, then hold it. `wait` is awaited between
        polls, with the seconds to the next one."""
        holder = new_instance_id()
        while not await self.acquire_lease(name, holder):
            await wait(LEASE_POLL_INTERVAL)
        async with self.keeping_lease(name, holder):
            yield

    @asynccontextmanager
    async def keeping_lease(
        self, name: str, holder: str, *, longest_hold: float = math.inf
    ) -> AsyncIterator[None]:
        """Renew a lease that the holder has just taken, and give it back at the end. It is free
        LEASE_SECONDS seconds after the holder's death, and after `longest_hold` seconds even
        while it lives."""
        until = time.monotonic() + longest_hold

        async def renew() -> None:
            if time.monotonic() < until:
                await self.acquire_lease(name, holder)

        try:
            async with renewing(name, LEASE_SECONDS, renew):
                yield
        finally:
            await self.release_lease(name, holder)


@asynccontextmanager
async def renewing(
    what: str, ttl: float, renew: Callable[[], Awaitable[object]]
) -> AsyncIterator[None]:
    """Call `renew` regularly until the end of the context, as the lease runs out after `ttl`
    seconds. `what` is named in the log."""
    background = TaskSupervisor(structlog.get_logger("leases"))
    background.start(f"renew {what}", partial(keep_renewing, what, ttl, renew))
    try:
        yield
    finally:
        await background.close()


async def keep_renewing(what: str, ttl: float, renew: Callable[[], Awaitable[object]]) -> NoReturn:
    """Call `renew` for ever, three times within `ttl` seconds. An unreachable ledger is only
    logged: the next write reports it."""
    while True:
        await asyncio.sleep(ttl / 3)
        try:
            await renew()
        except LedgerError as error:
            structlog.get_logger("leases").warning("renewal failed", renewed=what, error=str(error))
