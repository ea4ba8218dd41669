"""The summary of a backfill's jobs, and the job that follows when the last of them has ended."""

from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.backfill import backfill_run
from switchyard.services.engine.backfill.sources import InvalidBackfill
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.session import BulkFailed
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.states import State
from tests.support.backfills import QUEUE, BackfillUser, open_backfills
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal

THEN_NOOP: dict[str, Any] = {"then": "noop", "then_payload": {"n": -1}}


async def then_id_of(user: BackfillUser, operation: BulkOperation) -> str:
    then_id = (await user.progress(operation)).then_id
    assert then_id is not None
    return then_id


async def test_a_backfill_waits_for_following_jobs_and_reports_dead_ones(
    user: BackfillUser,
) -> None:
    system = user.system
    await system.start_worker("llm", "embed")
    payloads = [{"steps": ["done"]}, {"steps": ["permanent"]}, {"steps": ["permanent"]}]
    scripted_backfill = await user.start("file", await user.store(payloads), job_type="scripted")
    spread_backfill = await user.start(
        "file", await user.store([{"count": 2}, {"count": 3}]), job_type="spread"
    )
    await user.run(scripted_backfill)
    await user.run(spread_backfill)
    progress = await user.progress(scripted_backfill)
    assert progress.jobs == {State.SUCCEEDED: 1, State.DEAD: 2}
    assert (progress.dead, progress.succeeded) == (2, False)
    (deaths,) = progress.deaths
    assert (deaths.job_type, deaths.reason, deaths.error_type, deaths.count) == (
        "scripted",
        "permanent",
        "PermanentError",
        2,
    )
    progress = await user.progress(spread_backfill)
    assert progress.jobs == {State.SUCCEEDED: 2}
    assert progress.followers == {State.SUCCEEDED: 5}
    assert progress.succeeded


async def test_the_then_job_runs_when_the_last_job_of_the_backfill_has_ended(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with open_backfills(broker310, database_url, tmp_path) as (system, user):
        operation = await user.start("numbers", {"to": 560, "keys": 520}, **THEN_NOOP)
        then_id = await then_id_of(user, operation)
        async with user.running():
            await system.wait_until_ready(QUEUE, 520)
            assert await system.state(then_id) is State.JOINING
            await system.start_worker(slots=8)
            then_job = await system.wait_for_state(then_id, State.SUCCEEDED, timeout=40)
        assert (then_job.payload, then_job.routing_key) == ({"n": -1}, "backfill.noop")
        join = await system.ledger.joins.join(then_id)
        assert join is not None
        assert (join.total, join.succeeded) == (520, 520)
        assert [start.job_id for start in journal.starts].count(then_id) == 1
        assert journal.starts[-1].job_id == then_id


async def test_the_then_job_of_a_backfill_without_items_runs_at_once(user: BackfillUser) -> None:
    await user.system.start_worker()
    operation = await user.start("file", await user.store([{"n": 1}]), job_type="noop", **THEN_NOOP)
    await user.storage.put_async(operation.spec["options"]["key"], b"")
    await user.run(operation)
    await user.system.wait_for_state(await then_id_of(user, operation), State.SUCCEEDED)


async def test_a_resumed_backfill_releases_the_then_job(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first runner died after the last publish, before it released the job."""
    with monkeypatch.context() as patch:

        async def fail(*_: object) -> None:
            raise BulkFailed("killed")

        patch.setattr(backfill_run.BackfillRun, "_seal_join", fail)
        operation = await user.start("numbers", {"to": 3}, **THEN_NOOP)
        assert (await user.run(operation)).state is BulkState.FAILED
    await user.system.start_worker()
    assert await user.system.state(await then_id_of(user, operation)) is State.JOINING
    await bulk_control.resume(user.system.ledger, operation.id)
    await user.run(operation)
    await user.system.wait_for_state(await then_id_of(user, operation), State.SUCCEEDED)


async def test_a_cancelled_backfill_cancels_its_then_job(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 40}, rate=5, **THEN_NOOP)
    async with user.running():
        await eventually(lambda: user.system.ready(QUEUE), what="a published job")
        await user.backfills.cancel(operation.id, jobs=False)
        assert await user.system.state(await then_id_of(user, operation)) is State.CANCELLED


INVALID_THEN_JOBS: list[tuple[dict[str, Any], str]] = [
    ({"then": "nothing"}, "then: .*nothing"),
    ({"then": "hot.nothing"}, "then: .*nothing"),
    ({"then": "nowhere.noop"}, "then: .*nowhere"),
    ({"then": "noop", "then_payload": {"n": "many"}}, "then: payload of noop: n"),
    ({"then_payload": {"n": 1}}, "name the job type"),
]


async def test_an_invalid_then_job_is_refused_at_the_start(user: BackfillUser) -> None:
    for spec, message in INVALID_THEN_JOBS:
        with pytest.raises(InvalidBackfill, match=message):
            await user.start("numbers", {"to": 3}, **spec)
