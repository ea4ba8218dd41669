"""Resolve shortened ids: the beginning of an id stands for the only id that begins with it."""

from __future__ import annotations

import re
from enum import Enum

from sqlalchemy import Connection, Table, func, select

from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.ledger.sql.repository import Repository
from switchyard.services.engine.ledger.sql.tables import bulk_operations, dead_letters, jobs

_START_PATTERN = re.compile(r"(?:[a-z]+-)?[0-9a-f]{6}[0-9a-f-]*")
"""The beginning of an id that this system made. An id from outside, such as `order-1`, is never a
beginning: cancelling it would cancel `order-12`, too."""
MIN_REST_LENGTH = 4
"""A start lacks at least so many characters of its id. Ids from outside may be numbers, and
`12345678` must not stand for `123456789`."""
MAX_SHORT_LENGTH = 35
"""Characters. A longer text is a whole id, such as this system's own (36 characters). Of a longer
id, MIN_REST_LENGTH does not matter."""
END_OF_RANGE = "zzzz"
"""Sorts after all characters that may follow a start, in the order of bytes and in those of
languages."""
MAX_LISTED = 3
"""Ids that an error names."""


class AmbiguousId(InvalidInput):
    """Several ids have this beginning; the text names some."""


class IdTable(Enum):
    """Table in which an id is looked up; other wings name tables of their own."""

    JOBS = jobs
    DEAD_LETTERS = dead_letters
    OPERATIONS = bulk_operations


class ShortIds(Repository):
    """Finds full ids by their beginning. Raises LedgerUnavailable when the database is away."""

    async def full_id(self, table: IdTable | Table, id_or_start: str) -> str:
        """Return the full id of an id or of its start, which has at least six hexadecimal digits.

        A full id, or the start of none, is returned as it is. Raises AmbiguousId.
        """
        if len(id_or_start) > MAX_SHORT_LENGTH or not _START_PATTERN.fullmatch(id_or_start):
            return id_or_start
        column = (table.value if isinstance(table, IdTable) else table).c.id
        query = (
            select(column)
            .where(
                # A range, which an index serves, and not LIKE; the rest is for other orders.
                column >= id_or_start,
                column <= id_or_start + END_OF_RANGE,
                func.substr(column, 1, len(id_or_start)) == id_or_start,
            )
            .order_by(func.length(column), column)
            .limit(MAX_LISTED + 2)
        )

        def work(connection: Connection) -> list[str]:
            return list(connection.scalars(query))

        ids = await self._database.read(work)
        matches = [
            each
            for each in ids
            if len(each) >= len(id_or_start) + MIN_REST_LENGTH or len(each) > MAX_SHORT_LENGTH
        ]
        if id_or_start in ids or not matches:
            return id_or_start
        if len(matches) > 1:
            more = " and more" if len(matches) > MAX_LISTED else ""
            raise AmbiguousId(
                f"several ids begin with {id_or_start}: {', '.join(matches[:MAX_LISTED])}{more}; "
                "write more of the one that is meant"
            )
        return matches[0]
