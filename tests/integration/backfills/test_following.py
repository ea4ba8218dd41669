"""What comes of a backfill's jobs, and the job that follows when the last of them has ended."""

from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.backfill import backfill_run as course
from switchyard.services.engine.backfill.sources import InvalidBackfill
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.bulk.session import BulkFailed
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.states import State
from tests.support.backfills import QUEUE, BackfillUser, opened
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal

NEXT: dict[str, Any] = {"then": "noop", "then_payload": {"n": -1}}


async def then_id_of(user: BackfillUser, operation: BulkOperation) -> str:
    then_id = (await user.progress(operation)).then_id
    assert then_id is not None
    return then_id


async def test_its_end_waits_for_what_followed_and_tells_the_dead(user: BackfillUser) -> None:
    system = user.system
    await system.start_worker("llm", "embed")
    steps = [{"steps": ["done"]}, {"steps": ["permanent"]}, {"steps": ["permanent"]}]
    scripted = await user.start("file", await user.store(steps), job_type="scripted")
    spread = await user.start(
        "file", await user.store([{"count": 2}, {"count": 3}]), job_type="spread"
    )
    await user.run(scripted)
    await user.run(spread)
    progress = await user.progress(scripted)
    assert progress.jobs == {State.SUCCEEDED: 1, State.DEAD: 2}
    assert (progress.dead, progress.succeeded) == (2, False)
    (cause,) = progress.deaths
    assert (cause.job_type, cause.reason, cause.error_type, cause.count) == (
        "scripted",
        "permanent",
        "PermanentError",
        2,
    )
    progress = await user.progress(spread)
    assert progress.jobs == {State.SUCCEEDED: 2}
    assert progress.followers == {State.SUCCEEDED: 5}
    assert progress.succeeded


async def test_a_job_follows_when_the_last_of_its_jobs_has_ended(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with opened(broker310, database_url, tmp_path) as (system, user):
        operation = await user.start("numbers", {"to": 560, "keys": 520}, **NEXT)
        then_id = await then_id_of(user, operation)
        async with user.running():
            await system.wait_until_ready(QUEUE, 520)
            assert await system.state(then_id) is State.JOINING
            await system.start_worker(slots=8)
            then = await system.wait_for_state(then_id, State.SUCCEEDED, timeout=40)
        assert (then.payload, then.routing_key) == ({"n": -1}, "backfill.noop")
        join = await system.ledger.joins.join(then_id)
        assert join is not None
        assert (join.total, join.succeeded) == (520, 520)
        assert [start.job_id for start in journal.starts].count(then_id) == 1
        assert journal.starts[-1].job_id == then_id


async def test_one_without_items_is_followed_at_once(user: BackfillUser) -> None:
    await user.system.start_worker()
    operation = await user.start("file", await user.store([{"n": 1}]), job_type="noop", **NEXT)
    await user.storage.put_async(operation.spec["options"]["key"], b"")
    await user.run(operation)
    await user.system.wait_for_state(await then_id_of(user, operation), State.SUCCEEDED)


async def test_whoever_goes_on_with_it_lets_the_job_go(
    user: BackfillUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before died after the last publish."""
    with monkeypatch.context() as patched:

        async def dies(*_: object) -> None:
            raise BulkFailed("killed")

        patched.setattr(course.BackfillRun, "_seal_join", dies)
        operation = await user.start("numbers", {"to": 3}, **NEXT)
        assert (await user.run(operation)).state is BulkState.FAILED
    await user.system.start_worker()
    assert await user.system.state(await then_id_of(user, operation)) is State.JOINING
    await bulk_control.resume(user.system.ledger, operation.id)
    await user.run(operation)
    await user.system.wait_for_state(await then_id_of(user, operation), State.SUCCEEDED)


async def test_cancelled_it_is_not_followed(user: BackfillUser) -> None:
    operation = await user.start("numbers", {"to": 40}, rate=5, **NEXT)
    async with user.running():
        await eventually(lambda: user.system.ready(QUEUE), what="it publishes")
        await user.backfills.cancel(operation.id, jobs=False)
        assert await user.system.state(await then_id_of(user, operation)) is State.CANCELLED


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"then": "nothing"}, "then: .*nothing"),
    ({"then": "hot.nothing"}, "then: .*nothing"),
    ({"then": "nowhere.noop"}, "then: .*nowhere"),
    ({"then": "noop", "then_payload": {"n": "many"}}, "then: payload of noop: n"),
    ({"then_payload": {"n": 1}}, "name the job type"),
]


async def test_a_job_that_can_not_follow_is_refused_at_the_start(user: BackfillUser) -> None:
    for spec, why in UNFIT:
        with pytest.raises(InvalidBackfill, match=why):
            await user.start("numbers", {"to": 3}, **spec)
