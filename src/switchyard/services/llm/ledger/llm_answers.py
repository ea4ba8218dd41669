"""Records of stored answers of language models, and claims to ask a question.

The answers themselves are files. The ledger has when each was made and last used, its size, and
which process is asking: a short claim, so that another process asks when a worker was killed. All
times are the database's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, TextClause, delete, select, text, tuple_, update

from switchyard.services.engine.ledger.sql.clock import latest_end
from switchyard.services.engine.ledger.sql.dialect import among, db_now, now_sql
from switchyard.services.engine.ledger.sql.repository import Repository, read, write, write_soon
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.records.retention import Removal
from switchyard.services.llm.ledger.llm_tables import llm_answers
from switchyard.services.llm.records.llm_servers import (
    AnswerClaim,
    AnswerClaimRequest,
    AnswersExamined,
    CacheHit,
    LeaseAcquired,
    LeaseHeld,
    UnrecordedAnswers,
)

USED_AT_RESOLUTION = 3600.0
"""Seconds by which the recorded time of an answer's last use may be late, so that most reads write
nothing."""
DEAD_CLAIM_AGE = 3600.0
"""Seconds after which a claim that has run out is deleted."""


class LlmAnswerRepository(Repository):
    """Records of stored answers and of claims to ask. All methods raise LedgerUnavailable when the
    database is unreachable."""

    @write
    def claim_llm_answer(
        self, connection: Connection, request: AnswerClaimRequest, *, is_file_lost: bool = False
    ) -> AnswerClaim:
        """Look up an answer, and claim the right to ask if there is none. `is_file_lost`
        says that the answer's file can't be read: its record does not count."""
        return claim_answer(connection, request, is_file_lost=is_file_lost)

    @write
    def renew_answer_claim(self, connection: Connection, key: str, holder: str, ttl: float) -> bool:
        """Hold the claim for `ttl` seconds more. Returns False if another process has it."""
        renewed = connection.execute(
            text(
                f"UPDATE llm_answers SET lease_until = {now_sql(connection)} + :ttl "
                "WHERE key = :key AND holder = :holder RETURNING key"
            ),
            {"key": key, "holder": holder, "ttl": ttl},
        )
        return renewed.first() is not None

    @write
    def record_llm_answer(self, connection: Connection, key: str, size: int) -> None:
        """Record an answer of `size` bytes, and end the claim of its asker."""
        connection.execute(_upsert_answer(connection), {"key": key, "size": size})

    # After a failure, the stored answer is found when the question is asked again.
    @write_soon("answer not recorded")
    def record_llm_answer_soon(self, connection: Connection, key: str, size: int) -> None:
        """Do what `record_llm_answer` does, in the transaction of the next change of a job."""
        connection.execute(_upsert_answer(connection), {"key": key, "size": size})

    @write
    def release_answer_claim(self, connection: Connection, key: str, holder: str) -> None:
        """Release the claim of `holder`: others may ask now."""
        condition = (llm_answers.c.key == key) & (llm_answers.c.holder == holder)
        is_unanswered = condition & llm_answers.c.created_at.is_(None)
        connection.execute(delete(llm_answers).where(is_unanswered))
        connection.execute(
            update(llm_answers).where(condition).values(holder=None, lease_until=None)
        )

    @write
    def forget_llm_answer(self, connection: Connection, key: str) -> None:
        """Delete the record of an answer, unless a process holds the claim to ask anew."""
        condition = (llm_answers.c.key == key) & llm_answers.c.holder.is_(None)
        connection.execute(delete(llm_answers).where(condition))

    @read
    def examine_llm_answers(
        self,
        connection: Connection,
        *,
        max_age: float,
        max_bytes: int,
        after: AnswersExamined | None,
        limit: int,
    ) -> AnswersExamined:
        """Examine the next `limit` answers behind those of `after`, the most recently used first,
        and find superfluous ones: answers older than `max_age` seconds, and the least recently used
        of the others, so that at most `max_bytes` bytes are kept."""
        watch = Stopwatch(connection)
        min_created_at = db_now(connection) - max_age
        used_at, key = llm_answers.c.used_at, llm_answers.c.key
        query = select(used_at, key, llm_answers.c.created_at, llm_answers.c.size).where(
            used_at.is_not(None)
        )
        kept_bytes = 0
        if after is not None and after.last is not None:
            kept_bytes = after.kept_bytes_so_far
            query = query.where(
                used_at <= after.last[0], tuple_(used_at, key) < tuple_(*after.last)
            )
        rows = connection.execute(query.order_by(used_at.desc(), key.desc()).limit(limit)).all()
        superfluous: dict[str, float] = {}
        for row in rows:
            is_old = row.created_at <= min_created_at
            kept_bytes += 0 if is_old else row.size
            if is_old or kept_bytes > max_bytes:
                superfluous[row.key] = row.used_at
        last_position = (rows[-1].used_at, rows[-1].key) if len(rows) == limit else None
        return AnswersExamined(superfluous, kept_bytes, last_position, watch.seconds())

    @write
    def drop_llm_answers(
        self, connection: Connection, superfluous: Mapping[str, float]
    ) -> tuple[list[str], Removal]:
        """Delete the records of superfluous answers (`superfluous`: time of the last use by key),
        except those that a process has a claim for or that were used since. Returns the keys of the
        deleted ones: their files are no longer needed."""
        watch = Stopwatch(connection)
        query = select(llm_answers.c.key, llm_answers.c.used_at).where(
            among(connection, llm_answers.c.key, sorted(superfluous)),
            llm_answers.c.holder.is_(None),
        )
        rows = connection.execute(query.with_for_update(skip_locked=True))
        keys = [row.key for row in rows if row.used_at == superfluous[row.key]]
        connection.execute(delete(llm_answers).where(among(connection, llm_answers.c.key, keys)))
        return keys, Removal(Counter({"llm_answers": len(keys)}), True, watch.seconds())

    @read
    def unrecorded_answers(self, connection: Connection, keys: Sequence[str]) -> UnrecordedAnswers:
        """Return those of `keys` that have neither a record nor a claim."""
        watch = Stopwatch(connection)
        query = select(llm_answers.c.key).where(among(connection, llm_answers.c.key, keys))
        known = set(connection.scalars(query))
        return UnrecordedAnswers([key for key in keys if key not in known], watch.seconds())

    @write
    def drop_dead_claims(self, connection: Connection, *, limit: int) -> Removal:
        """Delete up to `limit` claims of processes that died before they had an answer."""
        watch = Stopwatch(connection)
        min_lease_until = db_now(connection) - DEAD_CLAIM_AGE
        is_dead = llm_answers.c.used_at.is_(None) & (llm_answers.c.lease_until < min_lease_until)
        dead_keys = select(llm_answers.c.key).where(is_dead).limit(limit)
        deleted = connection.execute(
            delete(llm_answers).where(llm_answers.c.key.in_(dead_keys), is_dead)
        )
        removed = Counter({"llm_answers": deleted.rowcount})
        return Removal(removed, deleted.rowcount < limit, watch.seconds())


def claim_answer(
    connection: Connection, request: AnswerClaimRequest, *, is_file_lost: bool = False
) -> AnswerClaim:
    """Do what `LlmAnswerRepository.claim_llm_answer` does, within a transaction."""
    row = connection.execute(_select_answer(connection), {"key": request.key}).one()
    if (
        row.created_at is not None
        and row.created_at > row.now - request.max_age
        and not is_file_lost
    ):
        if row.used_at < row.now - USED_AT_RESOLUTION:
            condition = llm_answers.c.key == request.key
            connection.execute(update(llm_answers).where(condition).values(used_at=row.now))
        return CacheHit(row.created_at)
    claim = connection.execute(
        _insert_claim(),
        {
            "key": request.key,
            "holder": request.holder,
            "now": row.now,
            "until": row.now + request.ttl,
            # A lease that ends later was written while the database's clock was ahead: it does not
            # count.
            "latest": latest_end(row.now, request.ttl),
        },
    )
    return LeaseAcquired() if claim.first() is not None else LeaseHeld()


# Statements that run for every call are constant text: building an expression takes longer than
# running it.


def _select_answer(connection: Connection) -> TextClause:
    """Return the query for the record of an answer, all NULL if there is none, and the time."""
    return text(
        "SELECT clock.now, created_at, used_at "
        f"FROM (SELECT {now_sql(connection)} AS now) AS clock "
        "LEFT JOIN llm_answers ON key = :key"
    )


def _insert_claim() -> TextClause:
    """Return the statement that claims the right to ask until `:until`, if nobody has it."""
    return text(
        "INSERT INTO llm_answers (key, size, holder, lease_until) "
        "VALUES (:key, 0, :holder, :until) "
        "ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, "
        "lease_until = excluded.lease_until WHERE llm_answers.holder IS NULL "
        "OR llm_answers.lease_until <= :now OR llm_answers.lease_until > :latest RETURNING key"
    )


def _upsert_answer(connection: Connection) -> TextClause:
    """Return the statement that records an answer, and ends the claim of its asker."""
    return text(
        "INSERT INTO llm_answers (key, size, created_at, used_at) "
        "SELECT CAST(:key AS text), CAST(:size AS bigint), now, now "
        f"FROM (SELECT {now_sql(connection)} AS now) AS clock "
        "WHERE true ON CONFLICT (key) DO UPDATE SET size = excluded.size, "
        "created_at = excluded.created_at, used_at = excluded.used_at, "
        "holder = NULL, lease_until = NULL"
    )
