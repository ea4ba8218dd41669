"""A ledger that was set back to an older copy, while the broker and its workers went on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing

import pytest

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.services.engine.dead.indexing import ReindexResult, index_waiting, reindex
from switchyard.services.engine.monitoring.lane_report import count_unlisted_letters
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.jobs import journal
from tests.support.system import System, open_system

INTERVALS = SchedulerIntervals(pending=0.0)


@pytest.fixture
async def system(broker: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker, sqlite_url) as opened:
        yield opened


def execute(sqlite_url: str, statement: str, values: Mapping[str, str] | None = None) -> None:
    """Change the ledger, as if it had been set back."""
    with closing(sqlite3.connect(sqlite_url.partition("///")[2])) as ledger, ledger:
        ledger.execute(statement, values or {})


async def bury(system: System, job_id: str) -> None:
    """Publish a job's dead letter, as a worker does."""
    message = JobMessage(job_id=job_id, job_type="noop", payload={})
    info = DeadLetterInfo(Reason.EXHAUSTED, "hot.noop", message="no use")
    await system.wire.send(DEAD_EXCHANGE, "hot.noop", envelope_of(message, info.headers()))


async def test_letters_that_the_copy_does_not_know_are_listed_again_and_no_others(
    system: System, sqlite_url: str
) -> None:
    for number in range(7):
        await bury(system, f"job-{number}")
    await bury(system, "job-6")  # the same death twice
    await index_waiting(system.settings, system.ledger, system.registry)
    assert await count_unlisted_letters(system.settings, system.ledger) == 0

    execute(sqlite_url, "DELETE FROM dead_letters WHERE id >= 'job-3'")
    execute(sqlite_url, "DELETE FROM jobs WHERE id >= 'job-3'")
    execute(sqlite_url, "UPDATE dead_letters SET state = 'redriven' WHERE id = 'job-0'")
    execute(sqlite_url, "UPDATE dead_letters SET id = 'gone' WHERE id = 'job-1'")
    assert await count_unlisted_letters(system.settings, system.ledger) == 6

    result = await reindex(system.settings, system.ledger, system.registry)
    assert result == ReindexResult(messages=8, letters=7, dropped=1)
    listed = {letter.id: letter for letter in (await system.ledger.dead_letters.list_dead()).items}
    assert {letter.id for letter in listed.values() if letter.state == "waiting"} == {
        f"job-{number}" for number in range(7)
    }
    assert listed["gone"].state == "dropped"
    assert {name: listed[name].copies for name in ("job-5", "job-6")} == {"job-5": 1, "job-6": 2}
    record = await system.ledger.job_reads.get("job-6")
    assert record is not None
    assert record.state is State.DEAD
    assert await count_unlisted_letters(system.settings, system.ledger) == 0
    assert len(await system.letters()) == 8

    assert await reindex(system.settings, system.ledger, system.registry) == ReindexResult(8, 7, 0)
    assert await system.ledger.dead_letters.count_dead(DeadLetterFilter(state="waiting")) == 7


async def test_jobs_that_their_living_worker_does_not_run_are_published_again(
    system: System, sqlite_url: str
) -> None:
    running = await system.start_worker()
    worker = running.worker
    await system.publish("hot.noop", job_id="ended")
    await system.wait_for_state("ended", State.SUCCEEDED)
    await system.publish("hot.gated", job_id="runs")
    await system.wait_for_state("runs", State.RUNNING)
    execute(
        sqlite_url,
        "UPDATE jobs SET state = 'running', worker_id = :worker, claim_id = :worker || '/old' "
        "WHERE id = 'ended'",
        {"worker": worker.worker_id},
    )

    assert await worker.release_unheld_claims() == 1
    scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=INTERVALS)
    try:
        assert (await scheduler.turn()).outbox == 1
    finally:
        await scheduler.close()
    await system.wait_for_state("ended", State.SUCCEEDED)
    assert journal.runs("ended") == 2
    assert await worker.release_unheld_claims() == 0

    journal.release("runs")
    await asyncio.wait_for(system.wait_for_state("runs", State.SUCCEEDED), 30)
    assert journal.runs("runs") == 1
