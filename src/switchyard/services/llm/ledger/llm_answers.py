"""Answers of language models that are kept, and the questions that somebody asks just now.

The answers themselves are files. Here is when each was made and used, how large it is, and who is
asking: a claim with a short life, so that the question of a killed worker is asked by another.
All times are the database's own.
"""

from __future__ import annotations

from sqlalchemy import Connection, TextClause, delete, func, or_, select, text, update

from switchyard.services.engine.ledger.sql.dialect import clock, db_now
from switchyard.services.engine.ledger.sql.repository import Repository, write
from switchyard.services.llm.ledger.llm_tables import llm_answers
from switchyard.services.llm.records.llm_servers import (
    AnswerClaim,
    CacheHit,
    LeaseAcquired,
    LeaseHeld,
)

USE_NOTED_INTERVAL = 3600.0
"""Seconds between updates of the time an answer was last used: most reads then write nothing."""


class LlmAnswerRepository(Repository):
    """Records of stored answers and of claims to ask. All methods raise LedgerUnavailable when the
    database is unreachable."""

    @write
    def claim_llm_answer(
        self,
        connection: Connection,
        key: str,
        holder: str,
        *,
        ttl: float,
        max_age: float,
        lost: bool = False,
    ) -> AnswerClaim:
        """Look an answer up that is not older than `max_age` seconds; else claim the right to ask,
        for `ttl` seconds. `lost`: the stored answer can't be read."""
        row = connection.execute(_find(connection), {"key": key}).one()
        if row.created_at is not None and row.created_at > row.now - max_age and not lost:
            if row.used_at < row.now - USE_NOTED_INTERVAL:
                condition = llm_answers.c.key == key
                connection.execute(update(llm_answers).where(condition).values(used_at=row.now))
            return CacheHit(row.created_at)
        taken = connection.execute(
            _claim(), {"key": key, "holder": holder, "now": row.now, "until": row.now + ttl}
        )
        return LeaseAcquired() if taken.first() is not None else LeaseHeld()

    @write
    def renew_llm_answer(self, connection: Connection, key: str, holder: str, ttl: float) -> bool:
        """Keep the claim for `ttl` seconds more. False when another has it."""
        renewed = connection.execute(
            text(
                f"UPDATE llm_answers SET lease_until = {clock(connection)} + :ttl "
                "WHERE key = :key AND holder = :holder RETURNING key"
            ),
            {"key": key, "holder": holder, "ttl": ttl},
        )
        return renewed.first() is not None

    @write
    def keep_llm_answer(self, connection: Connection, key: str, size: int) -> None:
        """Record an answer of `size` bytes, and end the claim of its asker."""
        connection.execute(_keep(connection), {"key": key, "size": size})

    @write
    def give_up_llm_answer(self, connection: Connection, key: str, holder: str) -> None:
        """Release the right to ask, without an answer: others may ask now."""
        condition = (llm_answers.c.key == key) & (llm_answers.c.holder == holder)
        unanswered = condition & llm_answers.c.created_at.is_(None)
        connection.execute(delete(llm_answers).where(unanswered))
        connection.execute(
            update(llm_answers).where(condition).values(holder=None, lease_until=None)
        )

    @write
    def forget_llm_answer(self, connection: Connection, key: str) -> None:
        """Delete the record of an answer; a process that asks just now goes on."""
        condition = (llm_answers.c.key == key) & llm_answers.c.holder.is_(None)
        connection.execute(delete(llm_answers).where(condition))

    @write
    def drop_llm_answers(
        self, connection: Connection, *, max_age: float, max_bytes: int, limit: int = 1000
    ) -> list[str]:
        """Delete the records of answers that are older than `max_age` seconds, and of the others
        those that were not used for longest, until what is left has `max_bytes` at most. Returns
        the keys of up to `limit` records that were deleted, whose files nobody needs any more."""
        now = db_now(connection)
        idle = llm_answers.c.holder.is_(None) & llm_answers.c.created_at.is_not(None)
        newest_first = (llm_answers.c.used_at.desc(), llm_answers.c.key)
        up_to = func.sum(llm_answers.c.size).over(order_by=newest_first)
        ranked = select(llm_answers.c.key, llm_answers.c.created_at, up_to.label("up_to")).where(
            idle
        )
        each = ranked.subquery()
        is_dropped = or_(each.c.created_at <= now - max_age, each.c.up_to > max_bytes)
        keys = list(connection.scalars(select(each.c.key).where(is_dropped).limit(limit)))
        connection.execute(delete(llm_answers).where(llm_answers.c.key.in_(keys)))
        # Claims of those who died before they had an answer.
        dead = llm_answers.c.created_at.is_(None) & (
            llm_answers.c.lease_until < now - USE_NOTED_INTERVAL
        )
        connection.execute(delete(llm_answers).where(dead))
        return keys


# The statements of every call are constant text: to build and look up an expression takes longer
# than to run it.


def _find(connection: Connection) -> TextClause:
    """Select the record of an answer, all NULL where there is none, and the time."""
    return text(
        f"SELECT clock.now, created_at, used_at FROM (SELECT {clock(connection)} AS now) AS clock "
        "LEFT JOIN llm_answers ON key = :key"
    )


def _claim() -> TextClause:
    """Claim the right to ask until `:until`, where nobody has it."""
    return text(
        "INSERT INTO llm_answers (key, size, holder, lease_until) "
        "VALUES (:key, 0, :holder, :until) "
        "ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, "
        "lease_until = excluded.lease_until WHERE llm_answers.holder IS NULL "
        "OR llm_answers.lease_until <= :now RETURNING key"
    )


def _keep(connection: Connection) -> TextClause:
    """Record an answer, and end the claim of its asker."""
    return text(
        "INSERT INTO llm_answers (key, size, created_at, used_at) "
        "SELECT CAST(:key AS text), CAST(:size AS bigint), now, now "
        f"FROM (SELECT {clock(connection)} AS now) AS clock "
        "WHERE true ON CONFLICT (key) DO UPDATE SET size = excluded.size, "
        "created_at = excluded.created_at, used_at = excluded.used_at, "
        "holder = NULL, lease_until = NULL"
    )
