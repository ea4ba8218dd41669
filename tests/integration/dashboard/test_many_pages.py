"""Many open pages query the ledger no more often than one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from switchyard.api.dashboard import live, sessions
from switchyard.api.dashboard.pages import DashboardPage
from switchyard.api.http import event_stream
from switchyard.services.engine.access import api_keys
from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi, serving, until_connected
from tests.support.eventually import eventually
from tests.support.made import message, new_job
from tests.support.system import System

STREAMS = 100
"""Open pages."""
READINGS = 20
"""Readings of the page over which its queries are counted."""
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    """Yield an API with room for all streams, whose requests need a key."""
    await create_key(system.ledger, "somebody", [Scope.READ])
    async with serving(system.settings, api_max_streams=4 * STREAMS) as running:
        await until_connected(running)
        yield running


class Follower:
    """A browser's stream of a page."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self.text = ""
        self._task = asyncio.create_task(self._follow(client, path))

    async def _follow(self, client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("GET", path, headers=STREAM) as stream:
            assert stream.status_code == 200
            async for each in stream.aiter_text():
                self.text += each

    async def shows(self, text: str) -> None:
        def is_there() -> bool:
            if self._task.done():
                self._task.result()
            return text in self.text

        await eventually(is_there, what=f"{text} on the page")

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_hundred_streams_query_the_ledger_as_often_as_one(
    system: System, api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read pages and check keys much more often than usual, and cache nothing.
    monkeypatch.setattr(api.server.app.state.dashboard.feeds, "_interval", 0.05)
    monkeypatch.setattr(live, "REST", 0)
    monkeypatch.setattr(live, "SECONDS_FOR_EACH", 0.0)
    monkeypatch.setattr(event_stream, "ADMISSION_INTERVAL", 0.05)
    for module in (api_keys, sessions):
        monkeypatch.setattr(module, "CACHE_TTL", 0.0)
    key = await create_key(system.ledger, "reader", [Scope.READ])
    await sign_in(api, key.key)
    queries: list[str] = []
    api.state.ledger.observe(lambda kind, seconds, succeeded: queries.append(kind))
    readings: list[DashboardPage] = []
    build = DashboardPage.__init__

    def count_page(page: DashboardPage, *arguments: Any, **options: Any) -> None:
        readings.append(page)
        build(page, *arguments, **options)

    monkeypatch.setattr(DashboardPage, "__init__", count_page)

    async def queries_per_reading() -> float:
        queries_before, readings_before = len(queries), len(readings)
        await eventually(
            lambda: len(readings) >= readings_before + READINGS, what="the page's readings"
        )
        return (len(queries) - queries_before) / (len(readings) - readings_before)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=api.url, cookies=api.client.cookies, limits=limits, trust_env=False, timeout=None
    ) as client:
        followers = [Follower(client, "/dashboard/jobs")]
        await followers[0].shows("live_")
        per_reading_alone = await queries_per_reading()
        followers += [Follower(client, "/dashboard/jobs") for _ in range(STREAMS - 1)]
        for each in followers:
            await each.shows("live_")
        per_reading_together = await queries_per_reading()
        assert api.server.app.state.dashboard.feeds.number == 1  # one reading for all
        await system.ledger.jobs.record(new_job(message("job-of-all")))
        for each in followers:
            await each.shows("job-of-all")
            await each.stop()
    figures = f"{per_reading_alone:.1f} queries for one stream, {per_reading_together:.1f} for all"
    assert per_reading_together < 2 * per_reading_alone, figures
