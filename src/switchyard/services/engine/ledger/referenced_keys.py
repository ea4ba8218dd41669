"""Find the files that unfinished jobs and operations name, and that must not be removed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from sqlalchemy import Connection, select, tuple_, union_all

from switchyard.broker.lanes import DEAD_TTL_SECONDS
from switchyard.services.engine.ledger.sql.dialect import among
from switchyard.services.engine.ledger.sql.repository import Repository
from switchyard.services.engine.ledger.sql.tables import (
    IS_DEAD,
    IS_WAITING,
    bulk_operations,
    dead_letters,
    jobs,
)
from switchyard.services.engine.records.bulk import ENDED
from switchyard.services.engine.records.states import OPEN

_PAGE = 1_000
"""Rows that are read in one transaction."""


class ReferencedKeys(Repository):
    """Collects the names of files that are still needed. Raises LedgerUnavailable when the database
    is away."""

    async def names_needed(self, *, since: float = 0.0) -> set[str]:
        """Return all texts that may name a needed file.

        These are all strings in the payloads of jobs that have not ended or can still be redriven,
        with the ids of each job, its parent and its pipeline; the same of waiting dead letters;
        with `since`, only of jobs that were made at that time or later. And all strings in the
        specs of operations that have not ended, whenever these were made: a backfill names its
        input. The cost grows with the number of such jobs and letters.
        """
        names: set[str] = set()
        # All in one snapshot: a job that changes its state meanwhile is not missed.
        ids = await self._database.read(partial(self._ids_of_needed_jobs, since=since))
        for start in range(0, len(ids), _PAGE):
            batch = ids[start : start + _PAGE]
            await self._database.read(partial(_add_names_of_jobs, job_ids=batch, names=names))
        place: tuple[float, str] | None = None if since else (0.0, "")
        while place is not None:
            place = await self._database.read(
                partial(_add_names_of_letters, after=place, names=names)
            )
        for spec in await self._database.read(_open_specs):
            names.update(texts_in(json.loads(spec)))
        return names

    def _ids_of_needed_jobs(self, connection: Connection, since: float) -> list[str]:
        lately = self.clock.time() - DEAD_TTL_SECONDS
        query = select(jobs.c.id).where(jobs.c.created_at >= since)
        # One statement: a job that changes its state in between would be missed by both.
        needed = union_all(
            query.where(jobs.c.state.in_(OPEN)),
            query.where(IS_DEAD, jobs.c.updated_at > lately),
        )
        return list(connection.scalars(needed))


def _open_specs(connection: Connection) -> list[str]:
    specs = select(bulk_operations.c.spec).where(bulk_operations.c.state.not_in(sorted(ENDED)))
    return list(connection.scalars(specs))


def _add_names_of_jobs(connection: Connection, job_ids: Sequence[str], names: set[str]) -> None:
    query = select(jobs.c.id, jobs.c.parent_id, jobs.c.pipeline, jobs.c.payload)
    for row in connection.execute(query.where(among(connection, jobs.c.id, job_ids))):
        names.update(name for name in (row.id, row.parent_id, row.pipeline) if name)
        names.update(texts_in(json.loads(row.payload)))


def _add_names_of_letters(
    connection: Connection, after: tuple[float, str], names: set[str]
) -> tuple[float, str] | None:
    # By their time of death: a letter that dies again meanwhile comes once more, later.
    at, key = dead_letters.c.dead_at, dead_letters.c.id
    rows = connection.execute(
        select(at, key, dead_letters.c.job_id, dead_letters.c.body)
        .where(IS_WAITING, at >= after[0], tuple_(at, key) > tuple_(*after))
        .order_by(at, key)
        .limit(_PAGE)
    ).all()
    for row in rows:
        if row.job_id:
            names.add(row.job_id)
        try:
            names.update(texts_in(json.loads(row.body)))
        except (ValueError, RecursionError):
            continue  # no JSON: no handler could read a name in it
    return (rows[-1].dead_at, rows[-1].id) if len(rows) == _PAGE else None


def texts_in(value: object) -> Iterator[str]:
    """Yield every string in a JSON value, at any depth; keys of objects are left out."""
    unread = [value]
    while unread:
        item = unread.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            unread.extend(item.values())
        elif isinstance(item, list):
            unread.extend(item)
