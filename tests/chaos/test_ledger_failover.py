"""The ledger's server dies, and its synchronous standby takes over: nothing is lost."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.services.engine.ledger.sql.database import Database, connect
from switchyard.services.engine.records.errors import LedgerUnavailable
from tests.support.brokers import TestBroker
from tests.support.chaos import (
    Effects,
    assert_all_accounted_for,
    open_chaos,
    outbox,
    publish_all,
    requests_of,
)
from tests.support.eventually import eventually
from tests.support.postgres_standby import Pair, running_pair, url_of
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(240), pytest.mark.postgres]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running_pair() as servers:
        yield servers


@pytest.mark.parametrize("failure", ["killed", "silent"])
async def test_the_standby_takes_over_in_the_middle_of_1000_jobs(
    broker310: TestBroker, pair: Pair, tmp_path: Path, failure: str
) -> None:
    primary, standby = pair
    async with (
        open_chaos(broker310, url_of(pair), tmp_path) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        for _ in range(2):
            await processes.start("worker", slots=8)
        effects = Effects(tmp_path)
        accepted: list[str] = []
        requests = [*requests_of(950, seconds=0.005), *requests_of(50, fail_attempts=1)]
        publishing = asyncio.create_task(
            publish_all(system, requests, batch=50, timeout=120, accepted=accepted)
        )
        await eventually(lambda: len(accepted) >= 300 and effects.ids("done"))
        # Silent: as if its cable were pulled, so that no client learns that it is gone.
        await asyncio.to_thread(primary.stop if failure == "killed" else primary.pause)
        await asyncio.to_thread(standby.promote)
        await publishing
        async with outbox(system):
            await assert_all_accounted_for(system, accepted, timeout=90)


async def test_without_a_writable_server_the_ledger_is_unavailable_within_seconds(
    pair: Pair,
) -> None:
    primary, standby = pair
    await asyncio.to_thread(primary.stop)
    database = await connect(url_of(pair), fail_fast=True)
    async with asyncio.timeout(2.5):
        with pytest.raises(LedgerUnavailable, match="takes writes") as caught:
            await database.write(lambda connection: None)
    assert primary.password not in str(caught.value)
    await asyncio.to_thread(standby.promote)
    await eventually(lambda: takes_writes(database), what="the standby takes writes")
    await database.close()


async def takes_writes(database: Database) -> bool:
    try:
        await database.write(lambda connection: None)
    except LedgerUnavailable:
        return False
    return True
