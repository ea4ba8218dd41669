"""The ledger is away: workers take no jobs, lose none, and go on by themselves."""

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
SETTLED = 1.0
"""Seconds after which nothing may start any more: what was claimed before has begun by then."""


@pytest.mark.parametrize(
    ("outage", "seconds"),
    [
        pytest.param("pause", 2, id="hanging-for-2s"),
        pytest.param("stop", 10, id="stopped-for-10s", marks=pytest.mark.long),
    ],
)
async def test_workers_outlast_a_postgresql_that_is_away(
    broker310: TestBroker,
    postgres_server: PostgresServer,
    tmp_path: Path,
    outage: str,
    seconds: int,
) -> None:
    away: Callable[[], None] = getattr(postgres_server, outage)
    back = {"stop": postgres_server.start, "pause": postgres_server.resume}[outage]
    async with (
        open_chaos(broker310, postgres_server.create_ledger(), tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        effects = Effects(tmp_path)
        await asyncio.gather(*(processes.start("worker") for _ in range(2)))
        accepted = await publish_all(system, requests_of(80, seconds=JOB_SECONDS))
        await effects.reach("done", 10)
        await asyncio.to_thread(away)

        await assert_nothing_starts(effects, seconds)
        await asyncio.to_thread(back)
        await assert_all_accounted_for(system, accepted)


async def test_workers_outlast_a_sqlite_ledger_that_another_process_locks(
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
        with closing(sqlite3.connect(sqlite_url.partition(":///")[2])) as other:
            other.execute("BEGIN IMMEDIATE")

            await assert_nothing_starts(effects, 2)
            other.rollback()
        await assert_all_accounted_for(system, accepted)


async def assert_nothing_starts(effects: Effects, seconds: float) -> None:
    """Wait for the length of the outage; jobs that run end, and no other begins."""
    await asyncio.sleep(SETTLED)
    started = effects.ids("started")
    assert len(started) < 80
    await asyncio.sleep(seconds - SETTLED)
    assert effects.ids("started") == started
