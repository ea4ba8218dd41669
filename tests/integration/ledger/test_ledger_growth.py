"""Jobs that ended long ago must not make the ledger slower. Counts steps of SQLite's machine, which
are the same everywhere. `make bench ARGS=large` measures both databases."""

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
"""Jobs in the two ledgers that are compared."""
PAGE_SIZE = 9
"""Jobs of a listing: fewer than there are of each state and lane."""
MAX_EXAMINED = 4_000
"""Jobs that are examined for a page that no index serves; more than are open."""
STEP_UNIT = 100
"""Steps of SQLite's machine that are counted as one."""

Operation = Callable[[Ledger], Awaitable[object]]


def make_listing(**filters: Any) -> Operation:
    async def list_jobs(ledger: Ledger) -> None:
        page = await ledger.job_reads.list_jobs(
            JobFilter(**filters), limit=PAGE_SIZE, examined=MAX_EXAMINED
        )
        assert page.items

    return list_jobs


async def read_deep_page(ledger: Ledger) -> None:
    job_filter = JobFilter(until=ledger.clock.time() - YEAR / 2)
    first = await ledger.job_reads.list_jobs(job_filter, limit=1)
    assert (await ledger.job_reads.list_jobs(cursor=first.next_cursor)).items


async def list_rare_source(ledger: Ledger) -> None:
    page = await ledger.job_reads.list_jobs(JobFilter(source=RARE_SOURCE), examined=MAX_EXAMINED)
    assert page.next_cursor
    assert not page.items


async def read_one_job(ledger: Ledger) -> None:
    job_filter = JobFilter(until=ledger.clock.time() - YEAR / 2)
    [job] = (await ledger.job_reads.list_jobs(job_filter, limit=1)).items
    assert await ledger.job_reads.get(job.id)


async def examine_for_pruning(ledger: Ledger) -> None:
    age = YEAR * 0.9
    ages = RetentionAges({State.SUCCEEDED: age, State.CANCELLED: None, State.DEAD: None})
    assert (
        await ledger.retention.examine(ages, State.SUCCEEDED, "hot", before=None, limit=20)
    ).removable


OPERATIONS: dict[str, Operation] = {
    "the newest": make_listing(),
    "a deep page": read_deep_page,
    "dead": make_listing(state=State.DEAD),
    "succeeded": make_listing(state=State.SUCCEEDED),
    "dead in a lane": make_listing(state=State.DEAD, lane="hot"),
    "a lane": make_listing(lane="maintenance"),
    "a tag": make_listing(tags={"team": "search"}),
    "time-outs": lambda ledger: ledger.job_reads.timed_out(ledger.clock.time() - 60),
    "gauges": lambda ledger: ledger.gauges.gauges(),
    "pruning": examine_for_pruning,
    "a source, long ago": list_rare_source,
    "slow": make_listing(state=State.SUCCEEDED, slower_than=90),
    "one job": read_one_job,
    "waiting letters": lambda ledger: ledger.dead_letters.list_dead(WAITING),
    "causes of waiting letters": lambda ledger: ledger.dead_letters.dead_groups(),
    "needed files": lambda ledger: ledger.references.names_needed(),
}


async def test_ended_jobs_make_no_operation_slower(tmp_path: Path) -> None:
    small, large = [
        await count_steps(f"sqlite+aiosqlite:///{tmp_path / f'{count}.db'}", count)
        for count in (SMALL, LARGE)
    ]
    # What reads all jobs takes LARGE / SMALL = 4 times the steps.
    assert {
        name: (before, large[name])
        for name, before in small.items()
        if large[name] > 1.3 * before + 5
    } == {}


async def count_steps(url: str, count: int) -> dict[str, int]:
    """Return how many steps each operation takes with so many jobs, in units of STEP_UNIT."""
    await upgrade(url)
    async with await Ledger.open(url) as ledger:
        await fill(ledger, url, count)
        read, steps = ledger.core.database.read, 0

        def step() -> None:
            nonlocal steps
            steps += 1

        async def read_counted(body: Callable[[Connection], Any]) -> Any:
            def body_with_steps(connection: Connection) -> Any:
                driver: Any = connection.connection.driver_connection
                driver.set_progress_handler(step, STEP_UNIT)
                return body(connection)

            return await read(body_with_steps)

        ledger.core.database.read = read_counted  # type: ignore[method-assign]
        step_counts = {}
        for name, operation in OPERATIONS.items():
            steps = 0
            await operation(ledger)
            step_counts[name] = steps
        return step_counts
