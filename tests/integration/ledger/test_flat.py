"""What a year of jobs leaves in the ledger must not make it slower: counted in SQLite's own steps,
which are the same on every machine. `make bench ARGS=large` measures both databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from benchmarks.large_ledger import RARE_SOURCE, YEAR, fill
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.ledger.dead_groups import WAITING
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.records.states import State

SMALL, LARGE = 5_000, 20_000
PAGE = 9
"""Jobs of a listing: fewer than there are of each state and lane."""
EXAMINED = 4_000
"""Jobs that are examined for a page that no index serves; more than are open."""
GRAIN = 100
"""Steps of SQLite's machine that are counted as one."""

Operation = Callable[[Ledger], Awaitable[object]]


def listed(**wanted: Any) -> Operation:
    async def list_jobs(ledger: Ledger) -> None:
        page = await ledger.job_reads.list_jobs(JobFilter(**wanted), limit=PAGE, examined=EXAMINED)
        assert page.items

    return list_jobs


async def deep_page(ledger: Ledger) -> None:
    until = JobFilter(until=ledger.clock.time() - YEAR / 2)
    first = await ledger.job_reads.list_jobs(until, limit=1)
    assert (await ledger.job_reads.list_jobs(cursor=first.next_cursor)).items


async def rare(ledger: Ledger) -> None:
    page = await ledger.job_reads.list_jobs(JobFilter(source=RARE_SOURCE), examined=EXAMINED)
    assert page.next_cursor
    assert not page.items


async def one_job(ledger: Ledger) -> None:
    until = JobFilter(until=ledger.clock.time() - YEAR / 2)
    [job] = (await ledger.job_reads.list_jobs(until, limit=1)).items
    assert await ledger.job_reads.get(job.id)


async def examined(ledger: Ledger) -> None:
    age = YEAR * 0.9
    ages = RetentionAges({State.SUCCEEDED: age, State.CANCELLED: None, State.DEAD: None})
    assert (
        await ledger.retention.examine(ages, State.SUCCEEDED, "hot", before=None, limit=20)
    ).removable


OPERATIONS: dict[str, Operation] = {
    "the newest": listed(),
    "a deep page": deep_page,
    "dead": listed(state=State.DEAD),
    "succeeded": listed(state=State.SUCCEEDED),
    "dead in a lane": listed(state=State.DEAD, lane="hot"),
    "a lane": listed(lane="maintenance"),
    "a tag": listed(tags={"team": "search"}),
    "time-outs": lambda ledger: ledger.job_reads.timed_out(ledger.clock.time() - 60),
    "gauges": lambda ledger: ledger.gauges.gauges(),
    "pruning": examined,
    "a source, long ago": rare,
    "slow": listed(state=State.SUCCEEDED, slower_than=90),
    "one job": one_job,
    "waiting letters": lambda ledger: ledger.dead_letters.list_dead(WAITING),
    "causes of waiting letters": lambda ledger: ledger.dead_letters.dead_groups(),
    "needed files": lambda ledger: ledger.references.names_needed(),
}


async def test_the_past_makes_nothing_slower(tmp_path: Path) -> None:
    small, large = [
        await counted(f"sqlite+aiosqlite:///{tmp_path / f'{count}.db'}", count)
        for count in (SMALL, LARGE)
    ]
    assert {
        name: (before, large[name])
        for name, before in small.items()
        if large[name] > 1.3 * before + 5
    } == {}


async def counted(url: str, count: int) -> dict[str, int]:
    """Return how many steps each operation takes with so many jobs, in hundreds."""
    await upgrade(url)
    async with await Ledger.open(url) as ledger:
        await fill(ledger, url, count)
        read, number = ledger.core.database.read, 0

        def step() -> None:
            nonlocal number
            number += 1

        async def counting(body: Callable[[Connection], Any]) -> Any:
            def counted_body(connection: Connection) -> Any:
                driver: Any = connection.connection.driver_connection
                driver.set_progress_handler(step, GRAIN)
                return body(connection)

            return await read(counted_body)

        ledger.core.database.read = counting  # type: ignore[method-assign]
        found = {}
        for name, operation in OPERATIONS.items():
            number = 0
            await operation(ledger)
            found[name] = number
        return found
