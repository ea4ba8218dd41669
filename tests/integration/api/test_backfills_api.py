"""`/backfills` through the Python client and the real service."""

import io
from pathlib import Path

import pytest

from switchyard.api.client import AsyncClient, Conflict, Invalid, NotFound
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi
from tests.support.backfills import BackfillUser
from tests.support.eventually import eventually
from tests.support.system import System


@pytest.fixture
def client(api: RunningApi) -> AsyncClient:
    return AsyncClient(str(api.client.base_url))


def json_lines(count: int) -> io.BytesIO:
    return io.BytesIO(b"".join(b'{"n": %d}\n' % n for n in range(count)))


async def test_a_backfill_from_an_upload_to_its_report(system: System, client: AsyncClient) -> None:
    stored = await client.store_backfill_input(json_lines(250), filename="ids.jsonl")
    assert (stored.format, stored.name) == ("jsonl", "ids.jsonl")
    options = stored.model_dump(mode="json")
    preview = await client.preview_backfill("file", options, job_type="noop")
    assert preview.total == 250
    assert (preview.jobs[3].routing_key, preview.jobs[3].payload) == ("backfill.noop", {"n": 3})
    started = await client.start_backfill("file", options, job_type="noop", reason="a trial")
    assert (started.state, started.total, started.reason) == ("waiting", 250, "a trial")
    assert started.created_by.startswith("api: ")
    await system.start_worker()
    async with BackfillUser(system).running():

        async def is_over() -> bool:
            return (await client.backfill(started.id)).state == "completed"

        await eventually(is_over)
    backfill = await client.backfill(started.id)
    assert backfill.jobs == {State.SUCCEEDED: 250}
    assert [each.id async for each in client.backfills()] == [started.id]
    assert [each.id async for each in client.backfills(state="paused")] == []
    await client.close()


async def test_a_backfill_is_paused_changed_resumed_and_cancelled(
    system: System, client: AsyncClient
) -> None:
    stored = (await client.store_backfill_input(json_lines(500), format="jsonl")).model_dump(
        mode="json"
    )
    started = await client.start_backfill("file", stored, job_type="noop", rate=3)
    assert (await client.pause_backfill(started.id)).state == "paused"
    changed = await client.set_backfill_limits(started.id, rate=None, weight=2.5)
    assert (changed.rate, changed.max_open, changed.plan["weight"]) == (None, None, 2.5)
    with pytest.raises(Invalid, match="weight"):
        await client.set_backfill_limits(started.id, weight=None)
    assert (await client.resume_backfill(started.id)).state == "waiting"
    async with BackfillUser(system).running():
        await system.wait_until_ready("backfill.llm", 500)
        cancelled = await client.cancel_backfill(started.id, jobs=True)
    assert cancelled.cancelled_jobs == 500
    with pytest.raises(Conflict, match="is cancelled: it is over"):
        await client.resume_backfill(started.id)
    with pytest.raises(Conflict, match="is cancelled: it is over"):
        await client.set_backfill_limits(started.id, rate=1)
    await client.close()


async def test_an_invalid_backfill_is_refused(client: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no source 'nowhere'"):
        await client.start_backfill("nowhere")
    with pytest.raises(Invalid, match="low watermark must be below"):
        await client.start_backfill("documents", job_type="noop", low=9, high=3)
    options = {"key": "backfills/none.jsonl", "format": "jsonl"}
    with pytest.raises(Invalid, match="no file 'backfills/none"):
        await client.preview_backfill("file", options, job_type="noop")
    with pytest.raises(NotFound):
        await client.pause_backfill("backfill-0000000000")
    await client.close()


async def test_a_job_follows_the_end_of_a_backfill_and_its_payload_is_validated(
    system: System, client: AsyncClient
) -> None:
    stored = (await client.store_backfill_input(json_lines(5), format="jsonl")).model_dump(
        mode="json"
    )
    started = await client.start_backfill(
        "file", stored, job_type="noop", then="noop", then_payload={"n": 9}, when_dead="go_on"
    )
    assert started.then_id is not None
    await system.start_worker()
    async with BackfillUser(system).running():
        await system.wait_for_state(started.then_id, State.SUCCEEDED, timeout=30)
    assert (await client.backfill(started.id)).then_id == started.then_id
    with pytest.raises(Invalid, match="then: payload of noop"):
        await client.start_backfill(
            "file", stored, job_type="noop", then="noop", then_payload={"n": "many"}
        )
    await client.close()
