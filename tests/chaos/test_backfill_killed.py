"""A backfill that is killed time and again: exactly one job for each item all the same."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from pathlib import Path

import pytest

from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from tests.support.backfills import BackfillUser
from tests.support.brokers import TestBroker
from tests.support.chaos import BOTH_QUEUE_TYPES, outbox
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import lanes_with, open_system
from tests.support.worker_process import ROOT, environment_of

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(420)]

KILLS = {"classic": 50, "quorum": 15}
"""In a row. The part of the broker is small, and the second profile holds it to the same."""
ITEMS_PER_KILL = 120
"""More than any of those that are killed publishes."""


@BOTH_QUEUE_TYPES
async def test_killed_time_and_again_it_publishes_every_item_once(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    kills = KILLS[broker.profile]
    items = kills * ITEMS_PER_KILL
    lanes = lanes_with(max_length={"backfill": 100_000})
    files = (tmp_path / "files").as_uri()
    async with open_system(broker, sqlite_url, lanes=lanes, storage_url=files) as system:
        user = BackfillUser(system)
        options = await user.store({"n": n} for n in range(items))
        # So slow that it can't be done before it was killed often enough.
        operation = await user.start("file", options, job_type="noop", rate=200, high=100_000)
        killer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.backfill_process"),
            *(operation.id, str(kills), "17"),
            cwd=ROOT,
            env=environment_of(system.settings),
            stdout=PIPE,
        )
        said, _ = await killer.communicate()
        assert int(said.split()[-1]) == kills
        progress = await user.progress(operation)
        assert 0 < progress.read < items

        await system.ledger.bulk.set_bulk_limits(operation.id, {"rate": None})
        await system.start_worker(slots=8)
        # The backfill is taken when the last hold has run out; what was recorded by a process that
        # was killed before it could publish it is the outbox's.
        async with user.running(), outbox(system):

            async def is_over() -> bool:
                return (await user.progress(operation)).is_over

            await eventually(is_over, timeout=180)

        progress = await user.progress(operation)
        assert progress.operation.state is BulkState.COMPLETED
        assert (progress.read, progress.published, progress.skipped) == (items, items, 0)
        assert progress.jobs == {State.SUCCEEDED: items}
        runs = Counter(start.message.payload["n"] for start in journal.starts)
        assert runs == Counter(range(items))
        listed = await system.ledger.job_reads.list_jobs(JobFilter(), limit=1)
        assert listed.items[0].operation_id == operation.id
