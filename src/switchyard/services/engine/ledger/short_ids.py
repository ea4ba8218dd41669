"""Ids that people shorten: the beginning of an id stands for the one that begins so."""

from __future__ import annotations

import re
from enum import Enum

from sqlalchemy import Connection, Table, func, select

from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.ledger.sql.repository import Repository
from switchyard.services.engine.ledger.sql.tables import bulk_operations, dead_letters, jobs

_SHORT = re.compile(r"(?:[a-z]+-)?[0-9a-f]{6}[0-9a-f-]*")
"""The beginning of an id that was made here. Not one of somebody's own, such as `order-1`: that
stands for itself alone, or who means to cancel it would cancel `order-12`."""
MIN_REST_LENGTH = 4
"""Characters that have to be missing, for the same reason: numbers may be ids as well."""
MAX_SHORT_LENGTH = 35
"""Characters; anything longer is a whole id, such as one that was made here (36). An id of more
than this may be shortened by any number of characters."""
LAST = "zzzz"
"""Sorts after all that may follow a beginning, in the order of bytes and in those of languages."""
MAX_LISTED = 3
"""Ids that an error names."""


class AmbiguousId(InvalidInput):
    """Several ids begin so; the text names some."""


class Among(Enum):
    """What the id identifies; the wings above name tables of their own."""

    JOBS = jobs
    DEAD_LETTERS = dead_letters
    OPERATIONS = bulk_operations


class ShortIds(Repository):
    """Full ids, by their beginning. Raises LedgerUnavailable when the database is away."""

    async def full_id(self, among: Among | Table, given: str) -> str:
        """Find the id that `given` is the beginning of, at least six hexadecimal digits of it; what
        is whole, or of nothing, comes back as it is. Raises AmbiguousId."""
        if len(given) > MAX_SHORT_LENGTH or not _SHORT.fullmatch(given):
            return given
        column = (among.value if isinstance(among, Among) else among).c.id
        query = (
            select(column)
            .where(
                # A range, which an index serves, and not LIKE; the rest is for other orders.
                column >= given,
                column <= given + LAST,
                func.substr(column, 1, len(given)) == given,
            )
            .order_by(func.length(column), column)
            .limit(MAX_LISTED + 2)
        )

        def work(connection: Connection) -> list[str]:
            return list(connection.scalars(query))

        found = await self._database.read(work)
        longer = [
            each
            for each in found
            if len(each) >= len(given) + MIN_REST_LENGTH or len(each) > MAX_SHORT_LENGTH
        ]
        if given in found or not longer:
            return given
        if len(longer) > 1:
            more = " and more" if len(longer) > MAX_LISTED else ""
            raise AmbiguousId(
                f"several ids begin with {given}: {', '.join(longer[:MAX_LISTED])}{more}; write "
                "more of the one that is meant"
            )
        return longer[0]
