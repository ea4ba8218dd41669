import asyncio
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql import database as database_module
from switchyard.services.engine.ledger.sql.postgres_servers import MAX_OVERFLOW, POOL_SIZE
from switchyard.services.engine.records.errors import LedgerLocked, LedgerUnavailable
from switchyard.services.engine.records.results import Claimed, Created
from switchyard.services.engine.records.states import State
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.made import claim, finish, message, new_job
from tests.support.postgres import PostgresServer


async def test_a_ledger_outlives_a_restart_of_postgresql(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_ledger()
    async with await Ledger.open(url) as ledger:
        await ledger.jobs.claim(claim())
        postgres_server.stop()
        writes = [ledger.jobs.finish(finish()), ledger.jobs.record(new_job("job-2"))]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(answer) for answer in answers] == [LedgerUnavailable, LedgerUnavailable]
        with pytest.raises(LedgerUnavailable):
            await ledger.job_reads.get("job-1")
        with pytest.raises(LedgerUnavailable):
            await ledger.workers.beat("worker-1")
        postgres_server.start()
        assert await ledger.jobs.finish(finish())
        assert await ledger.jobs.record(new_job("job-2")) == Created("job-2")


async def test_a_restart_between_two_calls_is_not_noticed(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_ledger()
    async with await Ledger.open(url) as ledger:
        await asyncio.gather(*(ledger.job_reads.get("job-1") for _ in range(5)))  # fill the pool
        await ledger.jobs.record(new_job())
        postgres_server.stop()
        postgres_server.start()
        assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
        record = await ledger.job_reads.get("job-1")
        assert record is not None


async def test_a_server_that_does_not_answer_is_unavailable(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT", 0.5)
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT", 0.5)
    url = postgres_server.create_ledger()
    async with await Ledger.open(url) as ledger:
        await ledger.jobs.record(new_job())
        postgres_server.pause()
        with pytest.raises(LedgerUnavailable):
            await ledger.jobs.claim(claim())
        postgres_server.resume()
        assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)


FREEZING_SCRIPT = """
import asyncio, os, signal, sys
from sqlalchemy import text
from switchyard.services.engine.ledger.sql import database, postgres_servers

postgres_servers.ABANDONED_TIMEOUT = 1.0
runs = []

def work(connection):
    connection.execute(text("UPDATE jobs SET worker = worker WHERE id = 'job-1'"))
    runs.append(1)
    if len(runs) == 1:
        print("locked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    connection.execute(text("UPDATE jobs SET worker = 'woken' WHERE id = 'job-1'"))

async def main():
    await (await database.connect(sys.argv[1])).write(work)

asyncio.run(main())
"""


async def test_a_process_frozen_in_a_transaction_does_not_keep_rows_locked(
    postgres_url: str,
) -> None:
    async with await Ledger.open(postgres_url) as ledger:
        await ledger.jobs.record(new_job())
        frozen = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FREEZING_SCRIPT, postgres_url),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert frozen.stdout is not None
            assert await frozen.stdout.readline() == b"locked\n"
            async with asyncio.timeout(10):
                assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
                frozen.send_signal(signal.SIGCONT)
                assert await frozen.wait() == 0  # it has repeated its transaction
            record = await ledger.job_reads.get("job-1")
            assert record is not None
            assert record.worker == "woken"
        finally:
            if frozen.returncode is None:
                frozen.kill()
                await frozen.wait()


async def test_a_locked_file_is_unavailable_and_then_works_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT", 0.2)
    await make_ledger(sqlite_url)
    writer = sqlite3.connect(sqlite_url.partition(":///")[2], isolation_level=None)
    async with await Ledger.open(sqlite_url) as ledger:
        await ledger.jobs.record(new_job())
        writer.execute("BEGIN IMMEDIATE")
        answers = await asyncio.gather(
            ledger.jobs.claim(claim()), ledger.jobs.record(new_job("job-2")), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [LedgerLocked, LedgerLocked]
        assert "locked" in str(answers[0])
        record = await ledger.job_reads.get("job-1")  # a writer does not keep readers out
        assert record is not None
        assert record.state is State.PENDING
        writer.execute("ROLLBACK")
        assert await ledger.jobs.claim(claim()) == Claimed(crashes=0)
    writer.close()


async def test_a_fail_fast_ledger_gets_its_turn_beside_a_process_that_keeps_writing(
    sqlite_url: str,
) -> None:
    """As on a busy machine: the other transactions are long, and the pauses between them short."""
    await make_ledger(sqlite_url)
    write_count = 0
    stopped = Event()

    def keep_writing() -> None:
        nonlocal write_count
        with closing(sqlite3.connect(sqlite_url.partition(":///")[2])) as writer:
            writer.isolation_level = None
            while not stopped.is_set():
                writer.execute("BEGIN IMMEDIATE")
                writer.execute("UPDATE system_id SET generation = generation + 1")
                stopped.wait(0.1)
                writer.execute("COMMIT")
                write_count += 1
                stopped.wait(0.003)

    async with await Ledger.open(sqlite_url, fail_fast=True) as ledger:
        await ledger.jobs.record(new_job("first"))
        writing = asyncio.create_task(asyncio.to_thread(keep_writing))
        try:
            await eventually(lambda: write_count)
            for number in range(8):
                await ledger.jobs.record(new_job(f"job-{number}"))
        finally:
            stopped.set()
            await writing


async def test_a_process_whose_own_queries_use_all_its_connections_reports_no_outage(
    postgres_url: str,
) -> None:
    async with (
        await Ledger.open(postgres_url, fail_fast=True) as ledger,
        await Ledger.open(postgres_url) as observer,
    ):
        sleep = f"SELECT pg_sleep({4 * database_module.FAIL_FAST_TIMEOUT})"
        sleeping = [
            asyncio.create_task(ledger.core.database.read(lambda c: c.exec_driver_sql(sleep).all()))
            for _ in range(POOL_SIZE + MAX_OVERFLOW)
        ]

        async def are_all_sleeping() -> bool:
            count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%'"
            found = await observer.core.database.read(lambda c: c.exec_driver_sql(count).scalar())
            return found == len(sleeping)

        await eventually(are_all_sleeping)
        assert await ledger.job_reads.get("job-1") is None
        await asyncio.gather(*sleeping)


async def test_a_full_disk_is_unavailable_and_then_works_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_ledger(sqlite_url)
    async with await Ledger.open(sqlite_url) as ledger:
        await ledger.jobs.record(new_job())
        # SQLite says "database or disk is full" for its own limit, too.
        set_page_limit = "PRAGMA max_page_count = {}"
        await ledger.core.database.write(
            lambda c: c.exec_driver_sql(set_page_limit.format(1)).all()
        )
        large = {"t": "x" * 900_000}
        with pytest.raises(LedgerUnavailable, match="full"):
            await ledger.jobs.record(new_job(message("large", payload=large)))
        await ledger.core.database.write(
            lambda c: c.exec_driver_sql(set_page_limit.format(10**9)).all()
        )
        job = new_job(message("large", payload=large))
        assert await ledger.jobs.record(job) == Created("large")


async def test_a_file_that_is_no_ledger_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    file.write_bytes(b"this is a text and not a database" * 100)
    async with await Ledger.open(f"sqlite+aiosqlite:///{file}") as ledger:
        with pytest.raises(LedgerUnavailable, match="not a database"):
            await ledger.check()
