"""Groups of dead letters, and redrives, through the Python client and the real service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from switchyard.api.client import AsyncClient, Conflict, Invalid, NotFound
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.handler import RedriveHandler
from tests.support.api_server import RunningApi
from tests.support.eventually import eventually
from tests.support.redrives import bury_all, names
from tests.support.system import System


@pytest.fixture
def client(api: RunningApi) -> AsyncClient:
    return AsyncClient(str(api.client.base_url))


@asynccontextmanager
async def redriving(system: System) -> AsyncIterator[None]:
    """Run redrives, as the scheduler does."""
    handler = RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)
    runner = BulkRunner(system.ledger, [handler])
    task = asyncio.create_task(runner.run())
    yield
    runner.stop()
    await asyncio.wait_for(task, 20)


async def test_a_group_is_planned_redriven_and_watched(system: System, client: AsyncClient) -> None:
    await bury_all(system, names(30, "a"), cause="no page 7")
    await bury_all(system, names(20, "b"), cause="disk full")
    groups = (await client.dead_groups()).groups
    counts_and_messages = [(each.count, each.message) for each in groups]
    assert counts_and_messages == [(30, "no page <n>"), (20, "disk full")]
    assert sum(groups[0].trend) == 30
    letter_filter = {"group": groups[1].group}
    plan = await client.plan_redrive(letter_filter, change={"to": "hot.scripted"})
    assert (plan.redriven, plan.routes) == (20, {"hot.scripted": 20})
    lines = plan.differences[0].lines
    assert '-  "routing_key": "backfill.scripted"' in "\n".join(lines), lines
    assert '+  "routing_key": "hot.scripted"' in lines
    assert len(plan.differences) == 5
    assert (await client.plan_redrive(letter_filter)).differences == []

    await system.start_worker()
    async with redriving(system):
        started = await client.start_redrive(letter_filter, canary=2, reason="the disk is empty")
        assert started.created_by.startswith("api: ")
        assert started.reason == "the disk is empty"

        async def is_completed() -> bool:
            redrive = await client.redrive(started.id)
            return (redrive.state, redrive.succeeded) == ("completed", 20)

        await eventually(is_completed)
    assert [each.id async for each in client.redrives()] == [started.id]
    await system.wait_until_all(names(20, "b"), State.SUCCEEDED)


async def test_a_redrive_is_paused_resumed_and_cancelled(
    system: System, client: AsyncClient
) -> None:
    await bury_all(system, names(200), recorded=False)
    started = await client.start_redrive(rate=5)
    with pytest.raises(Conflict, match="takes some of the same letters"):
        await client.start_redrive({"lane": "backfill"})
    async with redriving(system):
        await system.wait_until_ready("backfill.llm", 3)
        assert (await client.pause_redrive(started.id)).state == "paused"
        assert (await client.set_redrive_rate(started.id, 7)).rate == 7
        assert (await client.resume_redrive(started.id)).state == "waiting"
        assert (await client.cancel_redrive(started.id)).state == "cancelled"
    with pytest.raises(Conflict, match="is over"):
        await client.resume_redrive(started.id)
    with pytest.raises(Conflict, match="is over"):
        await client.set_redrive_rate(started.id, 8)


@pytest.mark.parametrize(
    ("letter_filter", "options"),
    [
        ({"reason": "NO"}, {}),
        ({"nonsense": 1}, {}),
        (None, {"canary": 0}),
        (None, {"halt_on": 20}),
        (None, {"change": {"jq": "."}}),
        (None, {"change": {"to": "nowhere"}}),
    ],
)
async def test_an_invalid_redrive_is_refused(
    shared_api: RunningApi, letter_filter: Any, options: Any
) -> None:
    async with AsyncClient(shared_api.url) as client:
        with pytest.raises(Invalid):
            await client.start_redrive(letter_filter, **options)
    assert (await shared_api.client.get("/admin/dead/redrives")).json()["redrives"] == []


async def test_an_unknown_redrive_is_not_found(shared_api: RunningApi) -> None:
    async with AsyncClient(shared_api.url) as client:
        with pytest.raises(NotFound):
            await client.redrive("redrive-0000000000")
