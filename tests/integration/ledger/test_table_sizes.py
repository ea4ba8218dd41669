"""How much disk space the ledger's tables take."""

from __future__ import annotations

from switchyard.services.engine.ledger import Ledger
from tests.support.made import NOW, letter, message, new_job


async def test_usage_has_the_rows_bytes_and_oldest_row_of_each_table(
    ledger: Ledger,
) -> None:
    for number in range(3):
        await ledger.jobs.record(new_job(message(f"job-{number}")))
    await ledger.dead_letters.index_dead([letter("job-0", dead_at=NOW)])
    usage = await ledger.table_sizes.usage()
    tables = {table.name: table for table in usage.tables}
    assert (tables["jobs"].rows, tables["dead_letters"].rows) == (3, 1)
    assert tables["attempts"].rows == 0
    assert tables["dead_letters"].since == NOW
    assert (tables["jobs"].bytes or 0) > 3 * 4096  # the table and its indexes
    assert usage.bytes > (tables["jobs"].bytes or 0)


async def test_rows_of_the_last_day_are_counted_apart(ledger: Ledger) -> None:
    now = ledger.clock.now()
    await ledger.jobs.record(new_job(message("today", created_at=now)))
    await ledger.jobs.record(new_job(message("before", created_at=now.replace(year=2020))))
    [jobs] = [table for table in (await ledger.table_sizes.usage()).tables if table.name == "jobs"]
    assert (jobs.rows, jobs.rows_of_last_day) == (2, 1)
