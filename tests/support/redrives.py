"""Dead letters, and redrives of them, run here to their end or only planned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage, Metadata, now
from switchyard.broker.publish.outcome import envelope_of
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.bulk import BulkOperation
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.redrive.handler import RedriveHandler
from switchyard.services.engine.redrive.plan import plan_redrive
from switchyard.services.engine.redrive.sending import RedriveCounts
from switchyard.services.engine.redrive.spec import RedriveProgress, RedriveSpec, start_redrive
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.eventually import MAX_WAIT
from tests.support.system import System

EVERYTHING = LetterFilter()
AS_IT_IS = Change()


async def redrive(
    system: System,
    letter_filter: LetterFilter = EVERYTHING,
    change: Change = AS_IT_IS,
    **options: Any,
) -> RedriveProgress:
    """Send back the matching letters, as `jobctl dead redrive` does, and return the progress."""
    spec = RedriveSpec(letter_filter, change, remote=False, **options)
    operation = await start_redrive(system.ledger, spec, created_by="test")
    return RedriveProgress.from_operation(await runner_of(system).run_one(operation.id))


async def plan(
    system: System,
    letter_filter: LetterFilter = EVERYTHING,
    change: Change = AS_IT_IS,
    **options: Any,
) -> RedriveCounts:
    """Return the counts that `jobctl dead redrive --dry-run` prints."""
    spec = RedriveSpec(letter_filter, change, remote=False, **options)
    return await plan_redrive(
        system.settings, system.registry, system.ledger, spec, lanes=system.lanes
    )


async def bury(
    system: System,
    job_id: str,
    routing_key: str = "backfill.noop",
    payload: Mapping[str, Any] | None = None,
    *,
    reason: Reason = Reason.EXHAUSTED,
    error_type: str = "RuntimeError",
    died: datetime | None = None,
    **metadata: Any,
) -> str:
    """Make a recorded job dead, as a worker does, and index its letter."""
    lane, _, job_type = routing_key.partition(".")
    message = JobMessage(
        job_id=job_id,
        job_type=job_type,
        payload=dict(payload or {}),
        metadata=Metadata(attempts=3, **metadata),
    )
    info = DeadLetterInfo(
        reason, routing_key, error_type=error_type, dead_at=(died or now()).isoformat()
    )
    await system.ledger.jobs.record(NewJob(message, lane, "llm", routing_key))
    await system.wire.send(DEAD_EXCHANGE, routing_key, envelope_of(message, info.headers()))
    await index(system)
    return job_id


async def bury_all(
    system: System,
    ids: Sequence[str],
    routing_key: str = "backfill.scripted",
    *,
    steps: Sequence[str] = ("done",),
    cause: str = "it failed",
    recorded: bool = True,
    **metadata: Any,
) -> list[str]:
    """Make jobs dead in this order, recorded unless told, and index their letters. A redriven one
    does its steps."""
    lane, _, job_type = routing_key.partition(".")
    info = DeadLetterInfo(Reason.EXHAUSTED, routing_key, error_type="RuntimeError", message=cause)
    messages = [
        JobMessage(
            job_id=job_id,
            job_type=job_type,
            payload={"steps": list(steps)} if job_type == "scripted" else {},
            metadata=Metadata(attempts=1, max_attempts=1, **metadata),
        )
        for job_id in ids
    ]
    for start in range(0, len(messages), 500):
        group = messages[start : start + 500]
        if recorded:
            await system.ledger.jobs.record_many(
                [NewJob(message, lane, "llm", routing_key) for message in group]
            )
        await asyncio.gather(
            *(
                system.wire.send(DEAD_EXCHANGE, routing_key, envelope_of(message, info.headers()))
                for message in group
            )
        )
    await index(system)
    return list(ids)


async def bury_many(system: System, ids: Sequence[str], routing_key: str = "backfill.noop") -> None:
    """Make many jobs dead in this order, without records."""
    await bury_all(system, ids, routing_key, recorded=False)


async def index(system: System) -> None:
    await index_waiting(system.settings, system.ledger, system.registry)


async def ids(system: System) -> list[str]:
    return [letter.id for letter in await system.letters()]


async def indexed(system: System, letter_id: str) -> tuple[str, int, int]:
    """Return what the index says: state, copies, redrives."""
    letter = await system.ledger.dead_letters.get_dead(letter_id)
    assert letter is not None
    return letter.state, letter.copies, letter.redrives


@asynccontextmanager
async def indexing(system: System) -> AsyncIterator[None]:
    """Index letters while the context is open, as a scheduler does."""
    scheduler = Scheduler(
        system.settings,
        system.registry,
        system.ledger,
        intervals=SchedulerIntervals(turn=0.05, lease=1),
    )
    task = asyncio.create_task(scheduler.run())
    await scheduler.is_active.wait()
    yield
    scheduler.stop()
    await asyncio.wait_for(task, MAX_WAIT)


def runner_of(system: System, **options: Any) -> BulkRunner:
    handler = RedriveHandler(
        system.settings, system.registry, system.ledger, lanes=system.lanes, **options
    )
    return BulkRunner(system.ledger, [handler])


async def start(
    system: System,
    letter_filter: LetterFilter = EVERYTHING,
    *,
    rate: float | None = None,
    **spec: Any,
) -> BulkOperation:
    return await start_redrive(
        system.ledger, RedriveSpec(letter_filter, **spec), created_by="test", rate=rate
    )


async def run(system: System, operation: BulkOperation, **options: Any) -> BulkOperation:
    """Run it in the foreground until it ends, halts or is paused."""
    return await asyncio.wait_for(runner_of(system, **options).run_one(operation.id), 90)


@asynccontextmanager
async def running(
    system: System, operation: BulkOperation, **options: Any
) -> AsyncIterator[asyncio.Task[BulkOperation]]:
    """Run a redrive while the context is open."""
    runner = runner_of(system, **options)
    task = asyncio.create_task(runner.run_one(operation.id))
    yield task
    runner.stop()
    await asyncio.wait_for(task, MAX_WAIT)


async def current(system: System, operation: BulkOperation) -> BulkOperation:
    return await bulk_control.require_bulk(system.ledger, operation.id)


def names(count: int, prefix: str = "job") -> list[str]:
    return [f"{prefix}-{number:04}" for number in range(count)]
