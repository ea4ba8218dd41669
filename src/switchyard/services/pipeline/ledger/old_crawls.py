"""Crawls that are long over, and are forgotten with the pages that they had claimed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, and_, delete, or_, select

from switchyard.broker.lanes import DEAD_TTL_SECONDS
from switchyard.services.engine.ledger.sql.base import Repository
from switchyard.services.engine.ledger.sql.tables import dead_letters, jobs
from switchyard.services.engine.records.states import FINISHED, DeadLetterState, State
from switchyard.services.pipeline.ledger.crawl_tables import crawl_pages, crawls

DROP_BATCH_SIZE = 1_000
"""Pages that one transaction removes."""


class OldCrawls(Repository):
    """Raises LedgerUnavailable when the database is away."""

    async def drop_old_crawls(self, age: float) -> int:
        """Forget crawls that began so many seconds ago, and whose pages have all ended; how many.

        One stays as long as a page of it may still be visited, as by a redrive: its job would have
        lost its crawl. Their jobs and documents stay. Safe to interrupt: the pages go first.
        """
        number = 0
        began = self.clock.time() - age
        while True:
            crawl_id = await self._database.read(
                lambda connection: connection.scalar(_next_old(began, self.clock.time()))
            )
            if crawl_id is None:
                return number
            number += await self._drop(crawl_id)

    async def _drop(self, crawl_id: str) -> int:
        mine = crawl_pages.c.crawl_id == crawl_id
        some = select(crawl_pages.c.address).where(mine).limit(DROP_BATCH_SIZE)
        pages = delete(crawl_pages).where(mine, crawl_pages.c.address.in_(some))

        def drop_some(connection: Connection) -> int:
            return connection.execute(pages).rowcount

        def drop_crawl(connection: Connection) -> int:
            return connection.execute(delete(crawls).where(crawls.c.id == crawl_id)).rowcount

        while await self._database.write(drop_some):
            continue
        return await self._database.write(drop_crawl)


def _next_old(began: float, now: float) -> Select[Any]:
    """The oldest crawl from before then that is needed no more."""
    letters = select(dead_letters.c.job_id).where(dead_letters.c.state == DeadLetterState.WAITING)
    redrivable = or_(
        jobs.c.updated_at > now - DEAD_TTL_SECONDS,
        jobs.c.id.in_(letters.where(dead_letters.c.job_id.is_not(None))),
    )
    dead = and_(jobs.c.state == State.DEAD, redrivable)
    needed = (
        select(jobs.c.id)
        .join(crawl_pages, crawl_pages.c.job_id == jobs.c.id)
        .where(
            crawl_pages.c.crawl_id == crawls.c.id,
            or_(jobs.c.state.not_in(FINISHED), dead),
        )
        .exists()
    )
    query = select(crawls.c.id).where(crawls.c.created_at < began, ~needed)
    return query.order_by(crawls.c.created_at, crawls.c.id).limit(1)
