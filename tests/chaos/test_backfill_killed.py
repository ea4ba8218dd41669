"""A backfill whose process is killed again and again publishes exactly one job for each item."""

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
"""Kills in a row, by profile. The broker matters little here, so quorum queues have fewer."""
ITEMS_PER_KILL = 120
"""Items for each kill: more than a process publishes before it is killed."""


@BOTH_QUEUE_TYPES
async def test_a_backfill_killed_again_and_again_publishes_every_item_once(
    broker: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    kills = KILLS[broker.profile]
    items = kills * ITEMS_PER_KILL
    lanes = lanes_with(max_length={"backfill": 100_000})
    files = (tmp_path / "files").as_uri()
    async with open_system(broker, sqlite_url, lanes=lanes, storage_url=files) as system:
        user = BackfillUser(system)
        options = await user.store({"n": n} for n in range(items))
        # The low rate keeps it from ending before it has been killed often enough.
        operation = await user.start("file", options, job_type="noop", rate=200, high=100_000)
        killer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.backfill_process"),
            *(operation.id, str(kills), "17"),
            cwd=ROOT,
            env=environment_of(system.settings),
            stdout=PIPE,
        )
        output, _ = await killer.communicate()
        assert int(output.split()[-1]) == kills
        progress = await user.progress(operation)
        assert 0 < progress.read < items

        await system.ledger.bulk.set_bulk_limits(operation.id, {"rate": None})
        await system.start_worker(slots=8)
        # A runner takes the backfill when the last hold has expired; the outbox publishes the jobs
        # that a killed process had recorded and not published.
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
