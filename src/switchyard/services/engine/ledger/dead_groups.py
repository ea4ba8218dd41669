"""Group dead letters by cause, counted from an index alone; and mark letters as dropped whose time
on the broker is over."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlalchemy import Connection, Integer, bindparam, cast, func, select, text, tuple_, update

from switchyard.services.engine.ledger.dead_letters import (
    DeadLetterIndex,
    filter_letters,
    to_letter,
)
from switchyard.services.engine.ledger.sql.repository import read, write
from switchyard.services.engine.ledger.sql.tables import dead_letters
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.results import DeadGroup, DeadLetter
from switchyard.services.engine.records.states import DeadLetterState

HOURS = 24
"""Hours of a group's trend."""
HOUR = 3600.0
MAX_GROUPS = 1_000
BATCH = 500
WAITING = DeadLetterFilter(state=DeadLetterState.WAITING)

FingerprintOf = Callable[[DeadLetter], str]
"""Makes the fingerprint of a letter."""


class DeadLetterRepository(DeadLetterIndex):
    """Groups and expires dead letters, and does all that DeadLetterIndex does. All methods raise
    LedgerUnavailable when the database is away."""

    async def dead_groups(
        self,
        *,
        letter_filter: DeadLetterFilter = WAITING,
        limit: int = 100,
        now: float | None = None,
    ) -> list[DeadGroup]:
        """Group the dead letters that match by cause, largest group first. Raises ValueError for a
        limit outside 1 to 1,000."""
        if not 1 <= limit <= MAX_GROUPS:
            raise ValueError(f"limit must be 1 to {MAX_GROUPS}")
        end_at = self.clock.time() if now is None else now
        group, at, number = dead_letters.c.fingerprint, dead_letters.c.dead_at, func.count()
        groups = (
            select(group, number, func.min(at), func.max(at))
            .where(group.is_not(None))
            .group_by(group)
            .order_by(number.desc(), group)
            .limit(limit)
        )
        hours_ago = (end_at - at) / HOUR
        # Each database has its own function for rounding down a number that is not negative.
        hour = (
            cast(hours_ago, Integer)
            if self._database.dialect == "sqlite"
            else func.floor(hours_ago)
        )
        recent = (
            select(group, hour, number)
            .where(group.is_not(None), at > end_at - HOURS * HOUR)
            .group_by(group, hour)
        )
        samples = select(dead_letters).order_by(at.desc(), dead_letters.c.id.desc()).limit(1)
        groups, recent, samples = (
            filter_letters(query, letter_filter, self._database.dialect)
            for query in (groups, recent, samples)
        )

        def work(connection: Connection) -> list[DeadGroup]:
            rows = connection.execute(groups).all()
            trends: dict[str, list[int]] = {row[0]: [0] * HOURS for row in rows}
            for fingerprint, hours, count in connection.execute(recent):
                if fingerprint in trends:
                    trends[fingerprint][HOURS - 1 - max(0, min(int(hours), HOURS - 1))] += count
            return [
                DeadGroup(
                    fingerprint,
                    count,
                    first_at,
                    last_at,
                    tuple(trends[fingerprint]),
                    to_letter(connection.execute(samples.where(group == fingerprint)).one()),
                )
                for fingerprint, count, first_at, last_at in rows
            ]

        return await self._database.read(work)

    async def group_letters(self, fingerprint_of: FingerprintOf) -> int:
        """Set the fingerprint of letters that were indexed before letters had one; return their
        number."""
        query = select(dead_letters).where(dead_letters.c.fingerprint.is_(None)).limit(BATCH)
        statement = (
            update(dead_letters)
            .where(dead_letters.c.id == bindparam("letter"))
            .values(fingerprint=bindparam("group"))
        )

        def work(connection: Connection) -> int:
            letters = [to_letter(row) for row in connection.execute(query)]
            rows = [{"letter": letter.id, "group": fingerprint_of(letter)} for letter in letters]
            if rows:
                connection.execute(statement, rows)
            return len(rows)

        grouped = 0
        while batch := await self._database.write(work):
            grouped += batch
        return grouped

    @write
    def drop_expired_letters(self, connection: Connection, indexed_before: float) -> int:
        """Mark waiting letters that were indexed before that time as dropped: their time on the
        broker is over. Returns their number."""
        statement = text(
            "UPDATE dead_letters SET state = 'dropped' "
            "WHERE state = 'waiting' AND updated_at < :before"
        )
        return connection.execute(statement, {"before": indexed_before}).rowcount

    @read
    def letters_in(
        self,
        connection: Connection,
        letter_filter: DeadLetterFilter,
        *,
        states: Collection[str],
        after: tuple[float, str] | None = None,
        limit: int = BATCH,
    ) -> list[DeadLetter]:
        """Return the letters in one of the states, oldest first, from after that time of death and
        id."""
        at, key = dead_letters.c.dead_at, dead_letters.c.id
        query = filter_letters(select(dead_letters), letter_filter, self._database.dialect)
        query = query.where(dead_letters.c.state.in_(sorted(states)))
        if after is not None:
            query = query.where(tuple_(at, key) > tuple_(*after))
        query = query.order_by(at, key).limit(limit)
        return [to_letter(row) for row in connection.execute(query)]
