import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from switchyard.broker.message import Metadata
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError, RowRejected
from switchyard.services.engine.records.results import Claimed, Created, Existing
from switchyard.services.engine.records.states import State
from tests.support.commands import commands
from tests.support.made import NOW, claim, finish, message, new_job

ROOT = Path(__file__).parents[3]


async def test_a_bad_row_fails_alone(ledger: Ledger) -> None:
    bad = new_job("bad", lane=None)
    jobs = [new_job(f"job-{n}") for n in range(20)]
    jobs.insert(7, bad)
    answers = await asyncio.gather(
        *(ledger.jobs.record(job) for job in jobs), return_exceptions=True
    )
    assert isinstance(answers.pop(7), RowRejected)
    assert answers == [Created(f"job-{n}") for n in range(20)]


async def test_a_number_out_of_range_fails_alone(ledger: Ledger) -> None:
    metadata = Metadata().model_copy(update={"attempts": 2**80})
    bad = claim(message("bad").model_copy(update={"metadata": metadata}), "c-bad")
    answers = await asyncio.gather(
        ledger.jobs.claim(claim()), ledger.jobs.claim(bad), return_exceptions=True
    )
    assert answers[0] == Claimed(crashes=0)
    # SQLite has no integer types of a limited size; PostgreSQL has.
    assert isinstance(answers[1], Claimed | RowRejected)


async def test_a_cancelled_caller_does_not_break_its_batch(ledger: Ledger) -> None:
    tasks = [asyncio.create_task(ledger.jobs.record(new_job(f"job-{n}"))) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    assert all(isinstance(answer, Created) for answer in answers)
    assert await ledger.jobs.record(new_job("job-99")) == Created("job-99")


async def test_writes_of_one_job_are_put_in_order_within_a_transaction(ledger: Ledger) -> None:
    # Submitted in the wrong order on purpose.
    finished, claimed, _, recorded = await asyncio.gather(
        ledger.jobs.finish(finish()),
        ledger.jobs.claim(claim()),
        ledger.jobs.mark_queued(["job-1"], NOW),
        ledger.jobs.record(new_job()),
    )
    assert finished is not None
    assert claimed == Claimed(crashes=0)
    assert recorded == Created("job-1")
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.queued_at) == (State.SUCCEEDED, NOW)


async def test_a_new_job_and_its_confirm_take_one_statement_each(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job("job-0"))  # measures the clock, too
    statements: list[str] = []

    def record_statement(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement.split()[0])

    event.listen(Engine, "before_cursor_execute", record_statement)
    try:
        await ledger.jobs.record(new_job("job-1"))
        await ledger.jobs.mark_queued(["job-1"], NOW)
        assert await ledger.jobs.record(new_job("job-1")) == Existing("job-1", State.QUEUED)
    finally:
        event.remove(Engine, "before_cursor_execute", record_statement)
    assert [statement for statement in statements if statement != "BEGIN"][:3] == [
        "INSERT",
        "UPDATE",
        "INSERT",
    ]


async def test_a_batch_may_mix_new_and_known_jobs_and_confirms(ledger: Ledger) -> None:
    await ledger.jobs.record_many([new_job("job-1"), new_job("job-2")])
    known, _, new = await asyncio.gather(
        ledger.jobs.record(new_job("job-1")),
        ledger.jobs.mark_queued(["job-2"], NOW),
        ledger.jobs.record(new_job("job-3")),
    )
    assert (known, new) == (Existing("job-1", State.PENDING), Created("job-3"))
    counts = await ledger.job_reads.counts()
    assert counts == {"hot": {State.PENDING: 2, State.QUEUED: 1}}


async def test_more_operations_than_a_batch_holds_are_all_written(ledger: Ledger) -> None:
    answers = await ledger.jobs.record_many([new_job(f"job-{n}") for n in range(1_201)])
    assert answers == [Created(f"job-{n}") for n in range(1_201)]
    assert await ledger.job_reads.counts() == {"hot": {State.PENDING: 1_201}}


async def test_large_jobs_are_written_in_several_statements(ledger: Ledger) -> None:
    jobs = [new_job(message(f"job-{n}", payload={"t": "x" * 900_000})) for n in range(20)]
    assert await ledger.jobs.record_many(jobs) == [Created(f"job-{n}") for n in range(20)]


async def test_a_closed_ledger_has_written_what_waited_and_takes_no_more(
    database_url: str,
) -> None:
    ledger = await Ledger.open(database_url)
    task = asyncio.create_task(ledger.jobs.record(new_job()))
    await asyncio.sleep(0)
    await ledger.close()
    assert await task == Created("job-1")
    with pytest.raises(LedgerError, match="closed"):
        await ledger.jobs.record(new_job("job-2"))


@pytest.mark.parametrize("is_recorded", [True, False], ids=["recorded", "unrecorded"])
async def test_processes_on_one_database_share_out_the_jobs(
    ledger: Ledger, database_url: str, is_recorded: bool
) -> None:
    if is_recorded:
        await ledger.jobs.record_many([new_job(f"job-{n}") for n in range(300)])
    runner = commands()
    processes = await asyncio.gather(
        *(
            asyncio.to_thread(
                runner.run,
                [database_url, f"worker-{n}", "300"],
                env=os.environ,
                cwd=ROOT,
                stdin="",
                timeout=60,
                module="tests.support.claiming",
            )
            for n in range(3)
        )
    )
    assert [process.stderr for process in processes if process.returncode] == []
    outputs = [process.stdout.split() for process in processes]
    claimed = sorted(int(job) for output in outputs for job in output)
    assert claimed == list(range(300))
