"""Clean-ups that remove rows in small steps."""

from collections import Counter
from collections.abc import Awaitable, Callable

from switchyard.services.engine.records.retention import Removal


async def remove_in_steps(
    remove: Callable[[int], Awaitable[Removal]], *, limit: int = 2
) -> Counter[str]:
    """Remove all in steps of at most `limit` rows of a table. Returns the removed rows by table."""
    rows: Counter[str] = Counter()
    while True:
        removal = await remove(limit)
        assert max(removal.rows.values(), default=0) <= limit, "a step is larger than allowed"
        rows += removal.rows
        if removal.is_complete:
            return rows
