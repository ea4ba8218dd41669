"""Crawls, and the pages that they have claimed.

A crawl claims a page by recording it as its own. Page and job are recorded in one transaction,
which locks the crawl's row. So no page has two jobs, and no crawl has more pages than it may. If
the process is killed before the commit, nothing is left behind; if it is killed afterwards, the
scheduler publishes the job.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, or_, select, update

from switchyard.broker.lanes import DEAD_TTL_SECONDS
from switchyard.services.engine.ledger.short_ids import ShortIds
from switchyard.services.engine.ledger.sql import job_operations as ops
from switchyard.services.engine.ledger.sql.attempt_ops import Cancel
from switchyard.services.engine.ledger.sql.codec import clean
from switchyard.services.engine.ledger.sql.dialect import insert_into
from switchyard.services.engine.ledger.sql.paging import fetch_page
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import dead_letters, jobs
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import Page
from switchyard.services.engine.records.retention import Removal
from switchyard.services.engine.records.states import FINISHED, WAITING, DeadLetterState, State
from switchyard.services.pipeline.ledger.pipeline_tables import crawl_pages, crawls
from switchyard.services.pipeline.records.crawls import (
    CrawlPage,
    CrawlProgress,
    CrawlRecord,
    CrawlState,
    FoundPage,
    ListedPage,
)

CANCEL_BATCH_SIZE = 500
"""Jobs that one transaction cancels."""
_MAX_OUTCOME = 300
"""Longest outcome of a page, in characters."""
_IS_FOUND_ADDRESS = crawl_pages.c.main == 1
"""True for the address by which a page was found, and false for those to which it redirects."""


class CrawlRepository(Repository):
    """Crawls and their pages. All methods raise LedgerUnavailable when the database is
    unreachable."""

    async def full_id(self, id_or_start: str) -> str:
        """Return the full id of a crawl, as `ShortIds.full_id` does. Raises AmbiguousId."""
        return await ShortIds(self._core).full_id(crawls, id_or_start)

    @write
    def start_crawl(
        self,
        connection: Connection,
        crawl: CrawlRecord,
        pages: Sequence[FoundPage],
        *,
        interval: float,
    ) -> CrawlRecord:
        """Record a crawl, its first pages and their jobs. Where another crawl already has its
        idempotency key, record nothing and return that crawl."""
        columns = {
            "id": crawl.id,
            "start": json.dumps(crawl.start),
            "hosts": json.dumps(crawl.hosts),
            "max_pages": crawl.max_pages,
            "max_depth": crawl.max_depth,
            "deadline": crawl.deadline,
            "created_by": clean(crawl.created_by),
            "created_at": crawl.created_at,
            "claimed": 0,
            "idempotency_key": crawl.idempotency_key,
        }
        statement = insert_into(connection, crawls).values(**columns).on_conflict_do_nothing()
        if connection.execute(statement).rowcount == 0 and crawl.idempotency_key is not None:
            return _crawl_record(connection.execute(_select_by_key(crawl.idempotency_key)).one())
        claimed = self._claim(connection, crawl, pages, crawl.created_at, interval)
        return replace(crawl, claimed=claimed)

    @write
    def claim_pages(
        self,
        connection: Connection,
        crawl_id: str,
        pages: Sequence[FoundPage],
        now: float,
        *,
        interval: float,
    ) -> int:
        """Claim the pages that the crawl does not have yet, within its bounds: each gets its job,
        due `interval` seconds after the last job of its host. Return how many were claimed."""
        query = select(crawls).where(crawls.c.id == crawl_id).with_for_update()
        row = connection.execute(query).one_or_none()
        crawl = None if row is None else _crawl_record(row)
        if crawl is None or crawl.end_reason(now) is not None:
            return 0
        return self._claim(connection, crawl, pages, now, interval)

    def _claim(
        self,
        connection: Connection,
        crawl: CrawlRecord,
        pages: Sequence[FoundPage],
        now: float,
        interval: float,
    ) -> int:
        page_by_hash = {_hash_url(each.url): each for each in pages}
        is_in_crawl = crawl_pages.c.crawl_id == crawl.id
        claimed_query = select(crawl_pages.c.address).where(
            is_in_crawl, crawl_pages.c.address.in_(list(page_by_hash))
        )
        claimed_hashes = set(connection.execute(claimed_query).scalars())
        pages_left = crawl.max_pages - crawl.claimed
        unclaimed = [each for each in page_by_hash.items() if each[0] not in claimed_hashes]
        pages_to_claim = dict(unclaimed[: max(0, pages_left)])
        if not pages_to_claim:
            return 0
        hosts = {each.host for each in pages_to_claim.values()}
        last_due = (
            select(crawl_pages.c.host, func.max(crawl_pages.c.due_at))
            .where(is_in_crawl, crawl_pages.c.host.in_(hosts))
            .group_by(crawl_pages.c.host)
        )
        due_by_host = {row[0]: max(now, row[1] + interval) for row in connection.execute(last_due)}
        rows, inserts = [], []
        for url_hash, each in pages_to_claim.items():
            due_at = due_by_host.setdefault(each.host, now)
            due_by_host[each.host] = due_at + interval
            rows.append(
                {
                    "crawl_id": crawl.id,
                    "address": url_hash,
                    "job_id": each.job.message.job_id,
                    "host": each.host,
                    "depth": each.depth,
                    "found_by": each.found_by,
                    "due_at": due_at,
                    "main": 1,
                    "url": each.url,
                }
            )
            job = each.job.shifted(self.clock.offset)  # its times are by this host's clock
            inserts.append(ops.InsertJob(replace(job, run_at=due_at)))
        connection.execute(insert(crawl_pages), rows)
        for result in self._writer.run(connection, inserts):
            if isinstance(result, LedgerError):
                raise result
        count_update = update(crawls).where(crawls.c.id == crawl.id)
        connection.execute(count_update.values(claimed=crawls.c.claimed + len(rows)))
        return len(rows)

    @write
    def claim_address(
        self, connection: Connection, crawl_id: str, page: CrawlPage, url: str, host: str
    ) -> bool:
        """Record the address to which a page redirects as the page's own. Returns False where it is
        another page's address."""
        row = {
            "crawl_id": crawl_id,
            "address": _hash_url(url),
            "job_id": page.job_id,
            "host": host,
            "depth": page.depth,
            "found_by": page.found_by,
            "due_at": page.due_at,
            "main": 0,
            "url": url,
        }
        # Lock the crawl, so that one caller at a time claims its pages.
        connection.execute(select(crawls.c.id).where(crawls.c.id == crawl_id).with_for_update())
        statement = insert_into(connection, crawl_pages).values(**row).on_conflict_do_nothing()
        connection.execute(statement)
        owner = select(crawl_pages.c.job_id).where(
            crawl_pages.c.crawl_id == crawl_id, crawl_pages.c.address == row["address"]
        )
        return connection.scalar(owner) == page.job_id

    @read
    def crawl_of_key(self, connection: Connection, key: str) -> CrawlRecord | None:
        """Return the crawl that was started under an idempotency key."""
        row = connection.execute(_select_by_key(key)).one_or_none()
        return None if row is None else _crawl_record(row)

    @read
    def crawl(self, connection: Connection, crawl_id: str) -> CrawlRecord | None:
        row = connection.execute(select(crawls).where(crawls.c.id == crawl_id)).one_or_none()
        return None if row is None else _crawl_record(row)

    @read
    def crawl_page(self, connection: Connection, crawl_id: str, url: str) -> CrawlPage | None:
        """Return the page of a crawl at an address."""
        query = select(crawl_pages).where(
            crawl_pages.c.crawl_id == crawl_id, crawl_pages.c.address == _hash_url(url)
        )
        row = connection.execute(query).one_or_none()
        return None if row is None else _crawl_page(row)

    @read
    def crawl_progress(self, connection: Connection, crawl_id: str) -> CrawlProgress | None:
        """Return a crawl, and the states of its pages."""
        row = connection.execute(select(crawls).where(crawls.c.id == crawl_id)).one_or_none()
        return None if row is None else _read_progress(connection, _crawl_record(row))

    @read
    def list_crawls(
        self, connection: Connection, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CrawlProgress]:
        """List crawls, the newest first. Raises ValueError as `list_jobs` does."""
        page = fetch_page(
            connection,
            select(crawls),
            crawls.c.created_at,
            crawls.c.id,
            _crawl_record,
            limit,
            cursor,
        )
        return Page(
            tuple(_read_progress(connection, each) for each in page.items), page.next_cursor
        )

    @read
    def crawl_pages(
        self, connection: Connection, crawl_id: str, *, limit: int = 50, cursor: str | None = None
    ) -> Page[ListedPage]:
        """List the pages of a crawl, those due last come first. Raises ValueError as `list_jobs`
        does."""
        query = (
            select(crawl_pages, jobs.c.state, jobs.c.result, jobs.c.error_message)
            .select_from(crawl_pages.outerjoin(jobs, jobs.c.id == crawl_pages.c.job_id))
            .where(crawl_pages.c.crawl_id == crawl_id, _IS_FOUND_ADDRESS)
        )
        return fetch_page(
            connection,
            query,
            crawl_pages.c.due_at,
            crawl_pages.c.job_id,
            _listed_page,
            limit,
            cursor,
        )

    async def cancel_crawl(self, crawl_id: str, now: float) -> int | None:
        """Cancel a crawl: jobs of waiting pages are cancelled, and pages that are being visited
        claim no others. Return how many jobs were cancelled; None where there is no such crawl.
        """
        if not await self._mark_cancelled(crawl_id, now):
            return None
        cancelled = 0
        while job_ids := await self._waiting_jobs(crawl_id):
            await self._committer.submit_many([Cancel(each, now) for each in job_ids])
            cancelled += len(job_ids)
        return cancelled

    @write
    def _mark_cancelled(self, connection: Connection, crawl_id: str, now: float) -> bool:
        cancelled_at = func.coalesce(crawls.c.cancelled_at, now)
        change = update(crawls).where(crawls.c.id == crawl_id).values(cancelled_at=cancelled_at)
        return connection.execute(change).rowcount > 0

    @read
    def _waiting_jobs(self, connection: Connection, crawl_id: str) -> list[str]:
        waiting = (
            select(jobs.c.id)
            .join(crawl_pages, crawl_pages.c.job_id == jobs.c.id)
            .where(
                crawl_pages.c.crawl_id == crawl_id,
                _IS_FOUND_ADDRESS,
                jobs.c.state.in_(sorted(WAITING)),
            )
            .limit(CANCEL_BATCH_SIZE)
        )
        return list(connection.scalars(waiting))

    async def drop_old_crawls(self, age: float, *, limit: int) -> Removal:
        """Delete up to `limit` pages of the oldest crawl that began at least `age` seconds ago and
        whose pages have all ended; with the last of them, the crawl.

        A crawl stays as long as a page of it may still be visited, for example after a redrive,
        since that job needs its crawl. Jobs and documents stay. Safe to interrupt, as the pages are
        deleted first.
        """
        crawl_id = await self._oldest_ended_crawl(self.clock.time() - age)
        if crawl_id is None:
            return Removal(Counter(), True, 0.0)
        return await self._drop_some(crawl_id, limit)

    @read
    def _oldest_ended_crawl(self, connection: Connection, before: float) -> str | None:
        """Return the oldest crawl that began before the time `before` and that no job needs any
        more."""
        waiting_letters = select(dead_letters.c.job_id).where(
            dead_letters.c.state == DeadLetterState.WAITING
        )
        may_have_letter = or_(
            jobs.c.updated_at > self.clock.time() - DEAD_TTL_SECONDS,
            jobs.c.id.in_(waiting_letters),
        )
        is_redrivable = and_(jobs.c.state == State.DEAD, may_have_letter)
        needed_jobs = (
            select(jobs.c.id)
            .join(crawl_pages, crawl_pages.c.job_id == jobs.c.id)
            .where(
                crawl_pages.c.crawl_id == crawls.c.id,
                or_(jobs.c.state.not_in(FINISHED), is_redrivable),
            )
            .exists()
        )
        query = select(crawls.c.id).where(crawls.c.created_at < before, ~needed_jobs)
        return connection.scalar(query.order_by(crawls.c.created_at, crawls.c.id).limit(1))

    @write
    def _drop_some(self, connection: Connection, crawl_id: str, limit: int) -> Removal:
        watch = Stopwatch(connection)
        is_in_crawl = crawl_pages.c.crawl_id == crawl_id
        batch = select(crawl_pages.c.address).where(is_in_crawl).limit(limit)
        pages = delete(crawl_pages).where(is_in_crawl, crawl_pages.c.address.in_(batch))
        removed = Counter({"crawl_pages": connection.execute(pages).rowcount})
        if removed["crawl_pages"] < limit:
            deleted = connection.execute(delete(crawls).where(crawls.c.id == crawl_id))
            removed["crawls"] = deleted.rowcount
        is_complete = False  # there may be another crawl
        return Removal(+removed, is_complete, watch.seconds())


def _select_by_key(key: str) -> Select[Any]:
    return select(crawls).where(crawls.c.idempotency_key == key)


def _hash_url(url: str) -> str:
    """Hash an address, so that it is short enough for indexes."""
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def _read_progress(connection: Connection, crawl: CrawlRecord) -> CrawlProgress:
    query = (
        select(jobs.c.state, func.count())
        .select_from(crawl_pages.join(jobs, jobs.c.id == crawl_pages.c.job_id))
        .where(crawl_pages.c.crawl_id == crawl.id, _IS_FOUND_ADDRESS)
        .group_by(jobs.c.state)
    )
    pages = {str(row[0]): int(row[1]) for row in connection.execute(query)}
    state = CrawlState.RUNNING
    if crawl.cancelled_at is not None:
        state = CrawlState.CANCELLED
    elif all(State(each) in FINISHED for each in pages):
        state = CrawlState.DONE
    return CrawlProgress(crawl, pages, state)


def _crawl_record(row: Row[Any]) -> CrawlRecord:
    return CrawlRecord(
        id=row.id,
        start=tuple(json.loads(row.start)),
        hosts=tuple(json.loads(row.hosts)),
        max_pages=row.max_pages,
        max_depth=row.max_depth,
        deadline=row.deadline,
        created_by=row.created_by,
        created_at=row.created_at,
        claimed=row.claimed,
        cancelled_at=row.cancelled_at,
        idempotency_key=row.idempotency_key,
    )


def _crawl_page(row: Row[Any]) -> CrawlPage:
    return CrawlPage(row.url, row.depth, row.job_id, row.found_by, row.due_at)


def _listed_page(row: Row[Any]) -> ListedPage:
    outcome = row.error_message
    if row.result is not None:
        result = json.loads(row.result)
        document = result.get("document_id")
        outcome = result.get("skipped") or (document and f"document {document}")
    text = None if outcome is None else str(outcome)[:_MAX_OUTCOME]
    return ListedPage(_crawl_page(row), str(row.state or "gone"), text)
