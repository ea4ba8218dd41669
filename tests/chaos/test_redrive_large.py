"""Dead letters of 20 causes are grouped; a redrive of one cause is killed half-way and resumed."""

import asyncio
import time
from pathlib import Path

import pytest

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.dead.scan import scanning
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.outcome import envelope_of
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.indexed import LeftoverRemover
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, start_redrive
from tests.support.brokers import TestBroker
from tests.support.chaos import BOTH_QUEUE_TYPES
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, lanes_with, open_system
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.long]

LETTERS = 8_000
"""Fewer than the 100,000 of `make bench ARGS=scan`, so that the test is quicker."""
CAUSES = 20
MAX_GROUP_TIME, MAX_SCAN_TIME = 10.0, 150.0
"""Seconds, five times what `make bench ARGS=scan` promises: beyond that, a busy machine is not the
cause."""


async def make_letters(system: System, count: int) -> list[str]:
    """Make that many dead letters, whose causes take turns; return their jobs' ids."""
    ids = [f"job-{number:06}" for number in range(count)]
    for start in range(0, count, 2_000):
        await asyncio.gather(
            *(
                system.wire.send(DEAD_EXCHANGE, "backfill.noop", _make_letter(ids[number], number))
                for number in range(start, start + 2_000)
            )
        )
    await index_waiting(system.settings, system.ledger, system.registry)
    return ids


def _make_letter(job_id: str, number: int):
    message = JobMessage(
        job_id=job_id, job_type="noop", payload={"n": number}, metadata=Metadata(attempts=3)
    )
    info = DeadLetterInfo(
        Reason.EXHAUSTED,
        "backfill.noop",
        error_type=f"Error{'ABCDEFGHIJKLMNOPQRST'[number % CAUSES]}",
        message=f"no page {number} of https://example.org/{number}",
        traceback=f'  File "/srv/jobs.py", line {number}, in fetch\n',
        attempts=3,
    )
    return envelope_of(message, info.headers())


async def scan_ids(system: System) -> list[str]:
    async with scanning(
        system.settings.require_amqp_url(), profile=system.settings.profile
    ) as scan:
        return [letter.id async for letter in scan.letters()]


def runner_of(system: System) -> BulkRunner:
    handler = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    return BulkRunner(system.ledger, [handler])


@pytest.mark.timeout(600)
@BOTH_QUEUE_TYPES
async def test_a_redrive_of_one_cause_of_twenty_survives_a_kill(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker, sqlite_url, lanes=lanes_with()) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        all_ids = await make_letters(system, LETTERS)
        letters_per_cause = len(all_ids) // CAUSES

        began = time.monotonic()
        groups = await system.ledger.dead_letters.dead_groups()
        assert time.monotonic() - began < MAX_GROUP_TIME
        assert [group.count for group in groups] == [letters_per_cause] * CAUSES

        began = time.monotonic()
        scanned_ids = await scan_ids(system)
        assert time.monotonic() - began < MAX_SCAN_TIME
        assert sorted(scanned_ids) == all_ids

        [group] = [group for group in groups if group.sample.error_type == "ErrorH"]
        redriven_ids = all_ids[7::CAUSES]
        operation = await start_redrive(
            system.ledger, RedriveSpec(LetterFilter(group=group.fingerprint)), created_by="test"
        )
        process = await processes.start("redrives", operation_id=operation.id)

        async def is_half_done() -> bool:
            return await system.ready("backfill.llm") >= letters_per_cause // 2

        await eventually(is_half_done, 120)
        process.kill()
        await process.ended()
        assert (
            await bulk_control.require_bulk(system.ledger, operation.id)
        ).state is BulkState.RUNNING

        operation_at_end = await _run_when_free(system, operation.id)
        assert operation_at_end.state is BulkState.COMPLETED
        assert RedriveProgress.from_operation(operation_at_end).redriven == letters_per_cause
        # They were few of many, so the queue still has their letters.
        assert await system.ledger.redrives.count_leftovers() == letters_per_cause
        await LeftoverRemover(system.settings, system.ledger).run()
        other_ids = set(all_ids) - set(redriven_ids)
        await _wait_for_letters(system, [job_id for job_id in scanned_ids if job_id in other_ids])

        await system.start_worker(slots=32)
        await system.wait_until_all(redriven_ids, State.SUCCEEDED, timeout=120)
        assert sorted({start.job_id for start in journal.starts}) == redriven_ids
        assert {journal.runs(job_id) for job_id in redriven_ids} == {1}
        assert await system.ledger.redrives.settle_redriven(operation.id) == {
            "succeeded": letters_per_cause
        }


async def _run_when_free(system: System, operation_id: str):
    """Resume the operation when the killed process's hold has expired, as a scheduler does."""
    runner = runner_of(system)
    running = asyncio.create_task(runner.run())

    async def is_completed() -> bool:
        state = (await bulk_control.require_bulk(system.ledger, operation_id)).state
        return state is BulkState.COMPLETED

    await eventually(is_completed, 120)
    runner.stop()
    await running
    return await bulk_control.require_bulk(system.ledger, operation_id)


async def _wait_for_letters(system: System, expected: list[str]) -> None:
    """Wait until these letters are in the queue, in this order: a quorum queue needs a moment."""

    async def has_letters() -> bool:
        return await scan_ids(system) == expected

    await eventually(has_letters, 60)
