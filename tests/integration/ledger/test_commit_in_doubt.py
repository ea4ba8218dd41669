"""PostgreSQL fails over: a connection is lost at COMMIT, before or after the server has received
it, or a primary stops taking writes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.results import AttemptFinished, Claimed, Created, Existing
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.chaos import outbox, publish_all, requests_of
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.made import claim, finish, new_job
from tests.support.postgres import PostgresServer
from tests.support.servers import own_postgres
from tests.support.system import open_system
from tests.support.tcp_proxy import TcpProxy


def is_commit(seen: bytes) -> bool:
    return b"COMMIT;" in seen


def is_fourth_commit(seen: bytes) -> bool:
    return seen.count(b"COMMIT;") >= 4  # if each were cut, no job would get on


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[TcpProxy]:
    """A proxy to the PostgreSQL server."""
    host, _, port = postgres_url.rpartition("@")[2].partition("/")[0].partition(":")
    async with TcpProxy(host, int(port)) as opened:
        yield opened


@pytest.mark.parametrize("commit_arrives", [True, False], ids=["committed", "not-committed"])
async def test_what_is_repeated_after_a_commit_in_doubt_is_done_once(
    postgres_url: str, proxy: TcpProxy, commit_arrives: bool
) -> None:
    async with await Ledger.open(proxy.url(postgres_url)) as ledger:

        async def cut_and_repeat(write: Callable[[], Awaitable[Any]]) -> Any:
            cut = proxy.cut_when(is_commit, forward=commit_arrives)
            with pytest.raises(LedgerUnavailable):
                await write()
            assert cut.is_set()
            return await write()

        jobs = [new_job("job-1", join_id="then"), new_job("then", joins=Joining("go_on"))]
        first, join_job = await cut_and_repeat(lambda: ledger.joins.record_joined(jobs))
        # The repeated request is a new one, and is answered that the job exists.
        assert (first.job_id, join_job.job_id) == ("job-1", "then")
        assert isinstance(first, Existing) is commit_arrives
        await ledger.jobs.mark_queued(["job-1"], 1_800_000_001)
        assert await cut_and_repeat(lambda: ledger.jobs.claim(claim())) == Claimed(
            crashes=0, join_id="then"
        )
        assert isinstance(
            await cut_and_repeat(lambda: ledger.jobs.finish(finish())), AttemptFinished
        )
        record = await ledger.job_reads.get("job-1")
        assert record is not None
        assert (record.state, record.attempts) == (State.SUCCEEDED, 1)
        join = await ledger.joins.join("then")
        assert join is not None
        assert (join.total, join.open) == (1, 0)
        assert (await ledger.job_reads.states(["then"]))["then"] is State.PENDING
        # Whatever its publisher was answered, the scheduler sees it:
        (due,) = await ledger.job_reads.due_pending(1_900_000_000, 10)
        assert due.id == "then"


@pytest.mark.parametrize("commit_arrives", [True, False], ids=["committed", "not-committed"])
async def test_a_statement_without_a_transaction_is_repeated_and_counts_once(
    postgres_url: str, proxy: TcpProxy, commit_arrives: bool
) -> None:
    async with await Ledger.open(proxy.url(postgres_url)) as ledger:
        cut = proxy.cut_when(lambda seen: b"job-1" in seen, forward=commit_arrives)
        # Created by this request, though a later request would be answered that the job exists.
        assert await ledger.jobs.record(new_job()) == Created("job-1")
        assert cut.is_set()
        cut = proxy.cut_when(lambda seen: b"job-1" in seen, forward=commit_arrives)
        await ledger.jobs.mark_queued(["job-1"], 1_800_000_001)
        assert cut.is_set()
        assert await ledger.jobs.record(new_job()) == Existing("job-1", State.QUEUED)


@pytest.mark.long
async def test_jobs_whose_commits_are_cut_off_again_and_again_run_once_each(
    broker310: TestBroker, postgres_url: str, proxy: TcpProxy, tmp_path: Path
) -> None:
    cuts = 0

    async def keep_cutting() -> None:
        nonlocal cuts
        for commit_arrives in cycle((True, False)):
            await proxy.cut_when(is_fourth_commit, forward=commit_arrives).wait()
            cuts += 1

    async with (
        open_system(broker310, postgres_url, data_dir=tmp_path) as system,
        await Ledger.open(proxy.url(postgres_url)) as ledger,
        outbox(system),
    ):
        await system.start_worker(ledger=ledger, slots=8)
        system.jobs = JobPublisher(system.registry, ledger, system.wire)
        cutting = asyncio.create_task(keep_cutting())
        try:
            requests = requests_of(40, "backfill.noop", n=1)
            accepted = await publish_all(system, requests, batch=4)
            await system.wait_until_all(accepted, State.SUCCEEDED, timeout=60)
        finally:
            cutting.cancel()
            proxy._triggers.clear()
        assert len(set(accepted)) == 40
        assert {journal.runs(job_id) for job_id in accepted} == {1}
        assert {(await system.record(job_id)).crashes for job_id in accepted} == {0}
        assert cuts >= 5


async def test_writes_move_from_a_read_only_primary_to_the_new_one() -> None:
    with (
        TemporaryDirectory(prefix="switchyard-postgres-") as old_folder,
        TemporaryDirectory(prefix="switchyard-postgres-") as new_folder,
    ):
        old, new = own_postgres(Path(old_folder)), own_postgres(Path(new_folder))
        try:
            for server in (old, new):
                server.start()
                await upgrade(server.url())
            set_read_only(new, "on")
            host = f"127.0.0.1:{old.port}"
            async with await Ledger.open(
                old.url().replace(host, f"{host},127.0.0.1:{new.port}")
            ) as ledger:
                await ledger.jobs.record(new_job("before"))
                set_read_only(new, "off")
                set_read_only(old, "on")
                # The old primary keeps its connections open and answers reads; it refuses writes.
                await eventually(
                    lambda: writes_reach(ledger, new), what="writes go to the new primary"
                )
                set_read_only(new, "on")
                await eventually(
                    lambda: is_unavailable(ledger),
                    what="the ledger is away, as no server takes writes",
                )
        finally:
            for server in (old, new):
                server.stop()


def set_read_only(server: PostgresServer, value: str) -> None:
    server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    server.execute("SELECT pg_reload_conf()")


async def writes_reach(ledger: Ledger, server: PostgresServer) -> bool:
    """Return whether a job that is recorded now is on this server. No write may fail meanwhile."""
    await ledger.jobs.record(new_job("after"))
    async with await Ledger.open(server.url()) as server_ledger:
        return await server_ledger.job_reads.get("after") is not None


async def is_unavailable(ledger: Ledger) -> bool:
    try:
        await ledger.workers.beat("worker-1")
    except LedgerUnavailable:
        return True
    return False
