"""Answers of catalogues of works, and claims to questions that a process is asking.

Each question is asked by one process of the fleet, which claims it. A claim has a short life, so
that another process asks when the first was killed. All times are the database's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, or_, select, update

from switchyard.services.engine.ledger.sql.clock import latest_end
from switchyard.services.engine.ledger.sql.dialect import db_now, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.records.retention import Removal
from switchyard.services.pipeline.ledger.pipeline_tables import catalogue_answers


@dataclass(frozen=True, slots=True)
class CatalogueClaims:
    """The result of a claim to several questions. Questions that are in neither field are being
    asked by other processes."""

    stored: Mapping[str, list[Any]]
    """Answers that the ledger already has, by key."""
    claimed: tuple[str, ...]
    """Keys of the questions that the caller must ask now."""


table = catalogue_answers


class CatalogueAnswerRepository(Repository):
    """Answers of catalogues, and claims to ask. All methods raise LedgerUnavailable when the
    database is unreachable."""

    @read
    def find_catalogue_answers(
        self, connection: Connection, keys: Sequence[str], *, max_age: float
    ) -> dict[str, list[Any]]:
        """Return the answers that are not older than `max_age` seconds, by key; up to 1,000
        keys."""
        return _stored_answers(connection, keys, db_now(connection) - max_age)

    @write
    def claim_catalogue_questions(
        self,
        connection: Connection,
        keys: Sequence[str],
        holder: str,
        *,
        ttl: float,
        max_age: float,
    ) -> CatalogueClaims:
        """Return the answers that are not older than `max_age` seconds; of the other questions,
        claim those that nobody else asks, for `ttl` seconds. Up to 1,000 keys."""
        now = db_now(connection)
        answers = _stored_answers(connection, keys, now - max_age)
        claimed: list[str] = []
        claim = {"holder": holder, "lease_until": now + ttl}
        # A claim that ends later than any claim can was written before the clock was set back.
        is_expired = or_(table.c.lease_until <= now, table.c.lease_until > latest_end(now, ttl))
        is_free = or_(table.c.holder.is_(None), table.c.holder == holder, is_expired)
        # In the same order in all processes, so that two of them can't deadlock.
        for key in sorted(set(keys) - answers.keys()):
            claimed_row = connection.execute(
                insert_into(connection, table)
                .values(key=key, **claim)
                .on_conflict_do_update(index_elements=["key"], set_=claim, where=is_free)
                .returning(table.c.key)
            )
            if claimed_row.first() is not None:
                claimed.append(key)
        # Answered by another process between the first look and the claim.
        late_answers = _stored_answers(connection, claimed, now - max_age)
        return CatalogueClaims(
            answers | late_answers, tuple(key for key in claimed if key not in late_answers)
        )

    @write
    def renew_catalogue_claims(
        self, connection: Connection, keys: Sequence[str], holder: str, ttl: float
    ) -> None:
        """Extend the holder's claims to `ttl` seconds from now."""
        condition = table.c.key.in_(keys) & (table.c.holder == holder)
        connection.execute(
            update(table).where(condition).values(lease_until=db_now(connection) + ttl)
        )

    @write
    def keep_catalogue_answers(
        self, connection: Connection, answers: Mapping[str, list[Any]]
    ) -> None:
        """Store answers, and end the claims of their questions."""
        now = db_now(connection)
        for key in sorted(answers):
            values = {
                "answer": json.dumps(answers[key]),
                "created_at": now,
                "holder": None,
                "lease_until": None,
            }
            connection.execute(
                insert_into(connection, table)
                .values(key=key, **values)
                .on_conflict_do_update(index_elements=["key"], set_=values)
            )

    @write
    def give_up_catalogue_claims(
        self, connection: Connection, keys: Sequence[str], holder: str
    ) -> None:
        """Release claims without an answer: others may ask now."""
        condition = table.c.key.in_(keys) & (table.c.holder == holder)
        connection.execute(update(table).where(condition).values(holder=None, lease_until=None))

    @write
    def drop_catalogue_answers(
        self, connection: Connection, *, max_age: float, limit: int
    ) -> Removal:
        """Delete up to `limit` answers that are older than `max_age` seconds, and as many claims of
        processes that died before they got an answer."""
        watch = Stopwatch(connection)
        now = db_now(connection)
        is_unclaimed = or_(table.c.holder.is_(None), table.c.lease_until <= now)
        deleted_count, is_complete = 0, True
        for is_old in (table.c.created_at <= now - max_age, table.c.created_at.is_(None)):
            old_keys = select(table.c.key).where(is_old, is_unclaimed).limit(limit)
            deleted = connection.execute(
                delete(table).where(table.c.key.in_(old_keys), is_old, is_unclaimed)
            )
            deleted_count += deleted.rowcount
            is_complete &= deleted.rowcount < limit
        return Removal(Counter({table.name: deleted_count}), is_complete, watch.seconds())


def _stored_answers(
    connection: Connection, keys: Sequence[str], since: float
) -> dict[str, list[Any]]:
    if not keys:
        return {}
    query = select(table.c.key, table.c.answer).where(
        table.c.key.in_(bindparam("keys", expanding=True)), table.c.created_at > since
    )
    rows = connection.execute(query, {"keys": list(keys)})
    return {row.key: json.loads(row.answer) for row in rows}
