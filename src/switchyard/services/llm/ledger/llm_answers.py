"""Answers of language models that are kept, and the questions that somebody asks just now.

The answers themselves are files. Here is when each was made and used, how large it is, and who is
asking: a claim with a short life, so that the question of a killed worker is asked by another.
All times are the database's own.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, or_, select, text, update

from switchyard.services.engine.ledger.sql.dialect import clock, db_now, insert_into
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
        now = db_now(connection)
        mine = llm_answers.c.key == key
        row = connection.execute(select(llm_answers).where(mine)).one_or_none()
        is_kept = row is not None and row.created_at is not None and not lost
        if is_kept and row is not None and row.created_at > now - max_age:
            if row.used_at < now - USE_NOTED_INTERVAL:
                connection.execute(update(llm_answers).where(mine).values(used_at=now))
            return CacheHit(row.created_at)
        claim = {"key": key, "holder": holder, "lease_until": now + ttl}
        free = or_(llm_answers.c.holder.is_(None), llm_answers.c.lease_until <= now)
        taken = connection.execute(
            insert_into(connection, llm_answers)
            .values(**claim, size=0)
            .on_conflict_do_update(index_elements=["key"], set_=claim, where=free)
            .returning(llm_answers.c.key)
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
        now = db_now(connection)
        values = {"size": size, "created_at": now, "used_at": now}
        ended = {**values, "holder": None, "lease_until": None}
        connection.execute(
            insert_into(connection, llm_answers)
            .values(key=key, **ended)
            .on_conflict_do_update(index_elements=["key"], set_=ended)
        )

    @write
    def give_up_llm_answer(self, connection: Connection, key: str, holder: str) -> None:
        """Release the right to ask, without an answer: others may ask now."""
        mine = (llm_answers.c.key == key) & (llm_answers.c.holder == holder)
        gone = mine & llm_answers.c.created_at.is_(None)
        connection.execute(delete(llm_answers).where(gone))
        connection.execute(update(llm_answers).where(mine).values(holder=None, lease_until=None))

    @write
    def forget_llm_answer(self, connection: Connection, key: str) -> None:
        """Delete the record of an answer; a process that asks just now goes on."""
        mine = (llm_answers.c.key == key) & llm_answers.c.holder.is_(None)
        connection.execute(delete(llm_answers).where(mine))

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
        out = or_(each.c.created_at <= now - max_age, each.c.up_to > max_bytes)
        keys = list(connection.scalars(select(each.c.key).where(out).limit(limit)))
        connection.execute(delete(llm_answers).where(llm_answers.c.key.in_(keys)))
        # Claims of those who died before they had an answer.
        dead = llm_answers.c.created_at.is_(None) & (
            llm_answers.c.lease_until < now - USE_NOTED_INTERVAL
        )
        connection.execute(delete(llm_answers).where(dead))
        return keys
