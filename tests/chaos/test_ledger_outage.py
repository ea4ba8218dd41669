"""While the ledger can't be reached, workers take no jobs; afterwards they go on and lose none."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    assert_all_accounted_for,
    open_chaos,
    publish_all,
    requests_of,
)
from tests.support.postgres import PostgresServer
from tests.support.worker_process import Processes

pytestmark = pytest.mark.chaos

JOB_SECONDS = 0.1
"""Seconds that each job runs."""
SETTLE_TIME = 1.0
"""Seconds of an outage after which no job may start: those claimed before have started by then."""


@pytest.mark.parametrize(
    ("outage", "outage_seconds"),
    [
        pytest.param("pause", 2, id="hanging-for-2s"),
        pytest.param("stop", 10, id="stopped-for-10s", marks=pytest.mark.long),
    ],
)
async def test_workers_survive_an_outage_of_postgresql(
    broker310: TestBroker,
    postgres_server: PostgresServer,
    tmp_path: Path,
    outage: str,
    outage_seconds: int,
) -> None:
    begin_outage: Callable[[], None] = getattr(postgres_server, outage)
    end_outage = {"stop": postgres_server.start, "pause": postgres_server.resume}[outage]
    async with (
        open_chaos(broker310, postgres_server.create_ledger(), tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        await asyncio.gather(*(processes.start("worker") for _ in range(2)))
        accepted = await publish_all(system, requests_of(80, seconds=JOB_SECONDS))
        await effects.reach("done", 10)
        await asyncio.to_thread(begin_outage)

        await assert_nothing_starts(effects, outage_seconds)
        await asyncio.to_thread(end_outage)
        await assert_all_accounted_for(system, accepted)


async def test_workers_survive_a_sqlite_ledger_that_another_process_locks(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_chaos(broker310, sqlite_url, tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        await asyncio.gather(*(processes.start("worker", busy_timeout=0.5) for _ in range(2)))
        accepted = await publish_all(system, requests_of(80, seconds=JOB_SECONDS))
        await effects.reach("done", 10)
        with closing(sqlite3.connect(sqlite_url.partition(":///")[2])) as connection:
            connection.execute("BEGIN IMMEDIATE")

            await assert_nothing_starts(effects, 2)
            connection.rollback()
        await assert_all_accounted_for(system, accepted)


async def assert_nothing_starts(effects: Effects, outage_seconds: float) -> None:
    """Wait for the length of the outage, and check that no further job starts."""
    await asyncio.sleep(SETTLE_TIME)
    started = effects.ids("started")
    assert len(started) < 80
    await asyncio.sleep(outage_seconds - SETTLE_TIME)
    assert effects.ids("started") == started
