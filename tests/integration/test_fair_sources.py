"""Fairness in a real queue: few jobs of one source beside many of another, and backfills that
share a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from switchyard.services.engine.backfill.spec import KIND
from switchyard.services.engine.bulk import control
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.bulk import BulkOperation
from tests.support.backfills import BackfillUser
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str, tmp_path: Path) -> AsyncIterator[System]:
    files = (tmp_path / "files").as_uri()
    async with open_system(broker310, sqlite_url, storage_url=files) as opened:
        yield opened


async def test_few_jobs_of_one_source_do_not_wait_for_many_of_another(system: System) -> None:
    jobs = JobPublisher(system.registry, system.ledger, system.wire, fair_from=10)

    async def publish(source: str, count: int) -> None:
        requests = [
            JobRequest("backfill.noop", {"n": n, "text": source}, source=source)
            for n in range(count)
        ]
        await jobs.publish_many(requests)

    await publish("big", 200)
    await publish("small", 5)
    assert await system.ledger.gauges.open_by_source("backfill", sample=1000) == {
        "big": 200,
        "small": 5,
    }
    assert sum((await system.ledger.gauges.open_by_source("backfill", sample=50)).values()) == 50
    await system.start_worker()
    await eventually(lambda: len(journal.starts) == 205, 60)
    order = [start.message.metadata.source for start in journal.starts]
    assert max(position for position, source in enumerate(order) if source == "small") < 60
    assert [*order].count("big") == 200


async def test_a_backfill_has_its_part_of_a_queue_that_another_has_filled(system: System) -> None:
    user = BackfillUser(system)

    async def count_queued(operation: BulkOperation) -> int:
        return await system.ledger.bulk_jobs.count_queued_bulk_jobs(
            operation.id, "backfill", system.registry.get("noop").worker, at_most=1000
        )

    async with user.running():
        first = await user.start("numbers", {"to": 10_000}, high=60, weight=3.0)

        async def is_filled() -> bool:
            return await count_queued(first) == 60

        await eventually(is_filled)
        # With a lower mark, it would wait until the other has left the queue.
        second = await user.start("numbers", {"to": 10_000}, high=60, low=5)

        async def has_part(part: int) -> bool:
            return await count_queued(second) == part

        await eventually(partial(has_part, 15))
        for weight, part in ((3.0, 30), (9.0, 45)):  # the other's weight is 3
            await control.set_limits(system.ledger, second.id, {"weight": weight}, kinds=[KIND])
            await eventually(partial(has_part, part), what=f"its part of the queue, {part}")
        assert await count_queued(first) == 60
