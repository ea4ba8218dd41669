"""A ledger that is unreachable, frozen or locked, and an API killed between record and publish."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from tests.integration.api.outages.answers import NOOP, assert_prompt, fast_scheduler, timed_publish
from tests.support.api_server import api_process, problem, serving
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.system import open_system


@pytest.mark.chaos
async def test_requests_get_503_while_the_ledger_is_unreachable(
    broker310: TestBroker, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.create_ledger()
    async with (
        open_system(broker310, url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        await asyncio.to_thread(postgres_server.stop)
        try:
            for answer in (
                await api.client.post("/jobs", json=NOOP),
                await api.client.get("/jobs"),
                await api.client.delete("/jobs/x"),
            ):
                problem(answer, 503, "ledger-away")
                assert int(answer.headers["retry-after"]) >= 1
            ready = (await api.client.get("/health/ready")).json()
            assert ready["components"]["ledger"]["state"] == "away"
        finally:
            await asyncio.to_thread(postgres_server.start)

        async def accepts_jobs() -> bool:
            return (await api.client.post("/jobs", json=NOOP)).status_code == 202

        await eventually(accepts_jobs)


async def test_requests_get_503_within_two_seconds_while_the_ledger_is_frozen(
    broker310: TestBroker, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.create_ledger()
    async with (
        open_system(broker310, url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        await asyncio.to_thread(postgres_server.pause)
        try:
            timed_answers = [await timed_publish(api) for _ in range(3)]
        finally:
            await asyncio.to_thread(postgres_server.resume)
        for answer, _ in timed_answers:
            problem(answer, 503, "ledger-away")
        assert_prompt([took for _, took in timed_answers])

        async def accepts_jobs() -> bool:
            return (await api.client.post("/jobs", json=NOOP)).status_code == 202

        await eventually(accepts_jobs)


async def test_requests_get_503_within_two_seconds_while_the_ledger_is_locked(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        with closing(sqlite3.connect(sqlite_url.partition("///")[2])) as other_connection:
            other_connection.isolation_level = None
            other_connection.execute("BEGIN IMMEDIATE")
            timed_answers = [await timed_publish(api) for _ in range(3)]
            other_connection.execute("ROLLBACK")
        for answer, _ in timed_answers:
            problem(answer, 503, "ledger-away")
        assert_prompt([took for _, took in timed_answers])
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


DIES_AFTER_RECORD = """
import os
from switchyard.services.engine.ledger.jobs import JobRepository
record_many = JobRepository.record_many
async def record_and_die(self, jobs):
    await record_many(self, jobs)
    os.kill(os.getpid(), 9)
JobRepository.record_many = record_and_die
from switchyard.cli.main import main
main()
"""


@pytest.mark.chaos
async def test_an_api_killed_between_record_and_publish_loses_no_job(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with open_system(broker310, database_url, data_dir=tmp_path) as system:
        async with (
            api_process(system.settings, tmp_path / "api.log", code=DIES_AFTER_RECORD) as api,
            httpx.AsyncClient(trust_env=False) as client,
        ):
            with pytest.raises(httpx.TransportError):
                await client.post(f"{api.url}/jobs", json=NOOP)
        (pending_job,) = (
            await system.ledger.job_reads.list_jobs(JobFilter(state=State.PENDING))
        ).items
        assert await system.ready("hot.llm") == 0
        scheduler = await fast_scheduler(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.wait_for_state(pending_job.id, State.SUCCEEDED)
        scheduler.stop()
        await scheduling
