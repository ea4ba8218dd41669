"""What jobs that are not over name: the files that nobody may clean away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from sqlalchemy import Connection, and_, or_, select, tuple_

from switchyard.broker.lanes import DEAD_TTL_SECONDS
from switchyard.services.engine.ledger.sql.repository import Repository
from switchyard.services.engine.ledger.sql.tables import dead_letters, jobs
from switchyard.services.engine.records.states import FINISHED, DeadLetterState, State

_PAGE = 1_000
"""Rows that are read in one transaction."""


class ReferencedKeys(Repository):
    """Raises LedgerUnavailable when the database is away."""

    async def names_needed(self, *, since: float = 0.0) -> set[str]:
        """Every text in the payload of a job that has not ended, or is dead and can still be
        redriven, with the ids of the job, its parent and its pipeline; the same of every dead
        letter that waits. With `since`, only of jobs that were made at that time or later.

        Costs as much as there are such jobs and letters.
        """
        found: set[str] = set()
        after: tuple[float, str] | None = (since, "")
        while after is not None:
            after = await self._database.read(partial(self._of_jobs, after=after, found=found))
        letter: str | None = "" if not since else None
        while letter is not None:
            letter = await self._database.read(partial(_of_letters, after=letter, found=found))
        return found

    def _of_jobs(
        self, connection: Connection, after: tuple[float, str], found: set[str]
    ) -> tuple[float, str] | None:
        """Return where the next page begins; None behind the last."""
        states = [state for state in State if state not in FINISHED]
        dead = and_(
            jobs.c.state == State.DEAD,
            jobs.c.updated_at > self.clock.time() - DEAD_TTL_SECONDS,
        )
        key = tuple_(jobs.c.created_at, jobs.c.id)
        rows = connection.execute(
            select(jobs.c.created_at, jobs.c.id, jobs.c.parent_id, jobs.c.pipeline, jobs.c.payload)
            .where(or_(jobs.c.state.in_(states), dead), key > tuple_(*after))
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(_PAGE)
        ).all()
        for row in rows:
            found.update(name for name in (row.id, row.parent_id, row.pipeline) if name)
            found.update(texts_in(json.loads(row.payload)))
        return (rows[-1].created_at, rows[-1].id) if len(rows) == _PAGE else None


def _of_letters(connection: Connection, after: str, found: set[str]) -> str | None:
    rows = connection.execute(
        select(dead_letters.c.id, dead_letters.c.job_id, dead_letters.c.body)
        .where(dead_letters.c.state == DeadLetterState.WAITING, dead_letters.c.id > after)
        .order_by(dead_letters.c.id)
        .limit(_PAGE)
    ).all()
    for row in rows:
        if row.job_id:
            found.add(row.job_id)
        try:
            found.update(texts_in(json.loads(row.body)))
        except (ValueError, RecursionError):
            continue  # no JSON: it names nothing that could be worked on
    return rows[-1].id if len(rows) == _PAGE else None


def texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, however deep; keys of objects are none."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
