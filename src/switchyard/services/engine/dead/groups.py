"""Check the group that a filter names, and complete its shortened ids."""

from __future__ import annotations

from dataclasses import replace

from switchyard.services.engine.dead.changes import InvalidRedrive
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.records.requests import DeadLetterFilter


class UnknownGroup(InvalidRedrive):
    """No dead letter was ever in this group; the text says how to list the groups."""


async def require_group(ledger: Ledger, which: LetterFilter) -> None:
    """Check the group of a filter before anything is done, so that a mistyped name does not count
    as an empty group. A group without remaining letters is still known. Raises UnknownGroup,
    LedgerUnavailable."""
    if which.group is None:
        return
    page = await ledger.dead_letters.list_dead(DeadLetterFilter(group=which.group), limit=1)
    if not page.items:
        raise UnknownGroup(
            f"no dead letter is of group {which.group!r}: see `jobctl dead groups`, "
            "GET /admin/dead/groups"
        )


async def with_full_ids(ledger: Ledger, which: LetterFilter) -> LetterFilter:
    """Return the filter with full ids in place of shortened ones. Raises AmbiguousId."""
    ids = [await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, each) for each in which.ids]
    return replace(which, ids=frozenset(ids))
