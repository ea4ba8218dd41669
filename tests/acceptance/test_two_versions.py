"""A rolling deploy: the last release and this one on one ledger and one broker, under load."""

import asyncio
import json
import re
import sys
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from switchyard.services.engine.ledger.sql.database import Database, connect
from tests.acceptance.conftest import RETRY_DELAYS, ROOT, clean_environment
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.installing import Jobctl, install_last_release

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "payloads.md"
OLD_PAYLOAD = {"title": "Trees", "pages": "7"}
STEP_TIMEOUT = 180
"""Seconds for each step: on a busy machine each of these programs takes long to start."""
NEW_PAYLOAD = {"name": "Trees", "language": "en"}
PUBLISH_PROGRAM = """
import asyncio, json, sys, uuid
from switchyard import JobPublisher, JobRequest


async def publish(jobs, key, payload):
    job_id = str(uuid.uuid4())
    while True:
        try:
            await jobs.publish(JobRequest(key, payload, job_id=job_id))
        except Exception as error:
            print(type(error).__name__, error, file=sys.stderr)
            await asyncio.sleep(0.5)
        else:
            return print("accepted", job_id, flush=True)


async def main():
    payload, stop = json.loads(sys.argv[1]), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, stop.set)
    async with JobPublisher.opened() as jobs:
        while not stop.is_set():
            for key in ("hot.make_report", "backfill.make_report"):
                await publish(jobs, key, payload)
            await asyncio.sleep(0.5)


asyncio.run(main())
"""
"""Publishes until SIGTERM and prints the ids of accepted jobs. A job that is not accepted is
published again: on a busy machine connections time out."""


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_last_release(tmp_path_factory.mktemp("last-release"))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_both_versions_run_jobs_on_one_ledger_and_broker_during_a_rolling_deploy(
    last_release: Path,
    broker310: TestBroker,
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Follow the steps of docs/deploy.md. The old programs use the first payload of
    docs/payloads.md, the new ones the third; one old worker is killed, and another one started on
    the migrated tables."""
    file = f"sqlite+aiosqlite:///{tmp_path}/ledger.db"
    url = file if database == "sqlite" else request.getfixturevalue("empty_postgres_url")
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        database_url=url,
        data_dir=str(tmp_path / "data"),
        modules="reports",
        retry_delays=",".join(map(str, RETRY_DELAYS)),
    )
    old = Jobctl(last_release, environment, tmp_path / "old")
    new = Jobctl(Path(sys.executable).parent / "jobctl", environment, tmp_path / "new")
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for command, program in zip((old, new), programs, strict=True):
        command.folder.mkdir()
        program_with_origin = program.replace(
            "return Done({", "return Done({'by': switchyard.__file__, "
        )
        (command.folder / "reports.py").write_text(f"import switchyard\n{program_with_origin}")
        (command.folder / "publish.py").write_text(PUBLISH_PROGRAM)

    def with_python(command: Jobctl) -> Jobctl:
        return replace(command, program=command.program.parent / "python")

    async def ok(command: Jobctl, *arguments: str) -> None:
        await asyncio.to_thread(command.ok, *arguments)

    await ok(old, "db", "upgrade")
    await ok(old, "topology", "apply")
    async with aclosing(LedgerQueries(await connect(url))) as ledger:
        with ExitStack() as running:
            start = running.enter_context
            killed_worker = start(old.started("worker", "reports"))
            old_processes = [
                start(old.started("worker", "reports")),
                start(old.started("scheduler")),
            ]
            publishers = [start(with_python(old).started("publish.py", json.dumps(OLD_PAYLOAD)))]
            await eventually(ledger.program_files, STEP_TIMEOUT, "a job of the old worker")

            await ok(new, "db", "upgrade")
            await ok(new, "topology", "apply")
            killed_worker.kill()
            old_processes.append(start(old.started("worker", "reports")))
            publishers.append(
                start(with_python(new).started("publish.py", json.dumps(NEW_PAYLOAD)))
            )
            await eventually(
                ledger.have_two_sent_on, STEP_TIMEOUT, "newer payloads at both old workers"
            )

            for _ in range(2):
                start(new.started("worker", "reports"))
            await eventually(ledger.is_shared, STEP_TIMEOUT, "jobs of both versions")
            start(new.started("scheduler"))
            for process in (*publishers, *old_processes):
                process.terminate()
                assert await asyncio.to_thread(process.wait, STEP_TIMEOUT) == 0
            logs = [(command.folder / "publish.py.log").read_text() for command in (old, new)]
            accepted = set(re.findall("^accepted (.+)$", "\n".join(logs), flags=re.MULTILINE))
            await eventually(ledger.is_done, STEP_TIMEOUT, "all jobs end")
            await eventually(
                partial(are_queues_empty, broker310), STEP_TIMEOUT, "the queues are empty"
            )
        assert await ledger.states() == dict.fromkeys(accepted, "succeeded")
        are_of_this_checkout = {
            Path(path).is_relative_to(ROOT) for path in await ledger.program_files()
        }
        assert are_of_this_checkout == {True, False}


async def are_queues_empty(broker: TestBroker) -> bool:
    """Return whether all queues are empty by the broker's counts, which lag by five seconds."""
    queues = await broker.management.get("/queues/{vhost}")
    return not any(queue.get("messages") for queue in queues)


class LedgerQueries:
    """Queries about all jobs, which do not depend on the version of the ledger's tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def aclose(self) -> None:
        await self._database.close()

    async def states(self) -> dict[str, str]:
        return dict(await self._rows("SELECT id, state FROM jobs"))

    async def is_done(self) -> bool:
        return await self._rows("SELECT id FROM jobs WHERE state <> 'succeeded'") == []

    async def have_two_sent_on(self) -> bool:
        """Return whether two workers have put off jobs that need a newer worker."""
        query = "SELECT DISTINCT worker_id FROM jobs WHERE error_type = 'NewerPayload'"
        return len(await self._rows(query)) == 2

    async def program_files(self) -> set[str]:
        """Return the paths of the packages whose workers finished jobs."""
        rows = await self._rows("SELECT result FROM jobs WHERE state = 'succeeded'")
        return {str(json.loads(row[0])["by"]) for row in rows}

    async def is_shared(self) -> bool:
        return len(await self.program_files()) == 2

    async def _rows(self, query: str) -> list[Any]:
        def read(connection: Connection) -> list[Any]:
            return [tuple(row) for row in connection.execute(text(query))]

        return await self._database.read(read)
