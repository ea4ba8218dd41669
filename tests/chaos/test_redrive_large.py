"""Dead letters of 20 causes: grouped, one cause redriven, killed half-way, resumed."""

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
"""`make bench ARGS=scan` has 100,000 of them."""
CAUSES = 20
GROUPED_WITHIN, SCANNED_WITHIN = 10.0, 150.0
"""Seconds, five times what is promised (`make bench ARGS=scan`): what takes longer is not a matter
of a slow or busy machine."""


async def bury_all(system: System, letters: int) -> list[str]:
    """Letters whose causes take turns."""
    ids = [f"job-{number:06}" for number in range(letters)]
    for start in range(0, letters, 2_000):
        await asyncio.gather(
            *(
                system.wire.send(DEAD_EXCHANGE, "backfill.noop", _letter(ids[number], number))
                for number in range(start, start + 2_000)
            )
        )
    await index_waiting(system.settings, system.ledger, system.registry)
    return ids


def _letter(job_id: str, number: int):
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


async def scanned(system: System) -> list[str]:
    async with scanning(
        system.settings.require_amqp_url(), profile=system.settings.profile
    ) as scan:
        return [letter.id async for letter in scan.letters()]


def runner_of(system: System) -> BulkRunner:
    handler = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    return BulkRunner(system.ledger, [handler])


@pytest.mark.timeout(600)
@BOTH_QUEUE_TYPES
async def test_one_cause_of_twenty_is_redriven_though_it_is_killed(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker, sqlite_url, lanes=lanes_with()) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        everything = await bury_all(system, LETTERS)
        each = len(everything) // CAUSES

        began = time.monotonic()
        groups = await system.ledger.dead_letters.dead_groups()
        assert time.monotonic() - began < GROUPED_WITHIN
        assert [group.count for group in groups] == [each] * CAUSES

        began = time.monotonic()
        in_order = await scanned(system)
        assert time.monotonic() - began < SCANNED_WITHIN
        assert sorted(in_order) == everything

        [one] = [group for group in groups if group.sample.error_type == "ErrorH"]
        chosen = everything[7::CAUSES]
        operation = await start_redrive(
            system.ledger, RedriveSpec(LetterFilter(group=one.fingerprint)), created_by="test"
        )
        process = await processes.start("redrives", operation_id=operation.id)

        async def half_way() -> bool:
            return await system.ready("backfill.llm") >= each // 2

        await eventually(half_way, 120)
        process.kill()
        await process.ended()
        assert (
            await bulk_control.require_bulk(system.ledger, operation.id)
        ).state is BulkState.RUNNING

        ended = await _run_when_free(system, operation.id)
        assert ended.state is BulkState.COMPLETED
        assert RedriveProgress.from_operation(ended).redriven == each
        # It was few of many, so the queue has them still.
        assert await system.ledger.redrives.count_leftovers() == each
        await LeftoverRemover(system.settings, system.ledger).run()
        others = set(everything) - set(chosen)
        await _are(system, [job_id for job_id in in_order if job_id in others])

        await system.start_worker(slots=32)
        await system.wait_until_all(chosen, State.SUCCEEDED, timeout=120)
        assert sorted({start.job_id for start in journal.starts}) == chosen
        assert {journal.runs(job_id) for job_id in chosen} == {1}
        assert await system.ledger.redrives.settle_redriven(operation.id) == {"succeeded": each}


async def _run_when_free(system: System, operation_id: str):
    """Go on as soon as the killed process's hold is over, as a scheduler does."""
    runner = runner_of(system)
    running = asyncio.create_task(runner.run())

    async def over() -> bool:
        state = (await bulk_control.require_bulk(system.ledger, operation_id)).state
        return state is BulkState.COMPLETED

    await eventually(over, 120)
    runner.stop()
    await running
    return await bulk_control.require_bulk(system.ledger, operation_id)


async def _are(system: System, expected: list[str]) -> None:
    """What waits, in its order; a quorum queue takes a moment to have its letters back."""

    async def is_so() -> bool:
        return await scanned(system) == expected

    await eventually(is_so, 60)
