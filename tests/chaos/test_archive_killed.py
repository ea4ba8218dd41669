"""Processes that write ended jobs into the archive are killed at each step: no job is lost, and
none is shown twice."""

from __future__ import annotations

import signal
import sys
from asyncio import create_subprocess_exec
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.archive.archiver import JobArchiver
from switchyard.services.engine.archive.contents import read_contents
from switchyard.services.engine.archive.parquet import make_secrets_hider
from switchyard.services.engine.archive.query import ArchiveRange, run_query
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.scheduler.retention import Pruner
from tests.support.archive_process import STEPS
from tests.support.ended_jobs import read_job_ids, record_ended_job
from tests.support.object_stores import CONTAINER, s3_server

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(300)]

JOBS = 25
"""Jobs for each step: three transactions remove them from the ledger."""
JOBS_LEFT = {
    "uploading": 25,
    "written": 25,
    "registered": 25,
    "removing": 15,
    "removed": 0,
    "settled": 0,
}
"""Jobs that the ledger still has after a kill at each step."""


@pytest.fixture(params=["file", "s3"])
def environment(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Set the variables for a folder and PostgreSQL, or for a bucket of an S3 server and SQLite."""
    monkeypatch.setenv("JOBS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JOBS_KEEP_SUCCEEDED", "30d")
    if request.param == "file":
        monkeypatch.setenv("JOBS_DATABASE_URL", request.getfixturevalue("postgres_url"))
        monkeypatch.setenv("JOBS_STORAGE_URL", tmp_path.as_uri())
        yield
        return
    with s3_server() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("JOBS_DATABASE_URL", request.getfixturevalue("sqlite_url"))
        monkeypatch.setenv("JOBS_STORAGE_URL", f"s3://{CONTAINER}/files")
        yield


@pytest.mark.usefixtures("environment")
async def test_a_process_killed_at_any_step_of_the_archive_loses_no_job_and_shows_none_twice() -> (
    None
):
    settings, registry = Settings(), Registry([])
    storage = Storage(settings.files_url)
    await upgrade(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:

        async def query_job_ids(*, with_ledger: bool) -> Counter[str]:
            answer = await run_query(
                "SELECT id FROM jobs",
                ledger,
                storage,
                make_secrets_hider(registry),
                archive_range=ArchiveRange(with_ledger=with_ledger),
                limit=1000,
                timeout=60,
            )
            return Counter(row[0] for row in answer.rows)

        accepted: set[str] = set()
        for step in STEPS:
            job_ids = {f"{step}-{number:02}" for number in range(JOBS)}
            for job_id in sorted(job_ids):
                await record_ended_job(ledger, job_id)
            accepted |= job_ids
            process = await create_subprocess_exec(
                sys.executable, "-m", "tests.support.archive_process", step
            )
            assert await process.wait() == -signal.SIGKILL, f"it was not killed at {step}"
            assert len(await read_job_ids(ledger)) == JOBS_LEFT[step]
            assert await query_job_ids(with_ledger=True) == Counter(accepted)
            archiver = JobArchiver(settings, ledger, registry)
            await Pruner(ledger, RetentionAges.of(settings), archiver=archiver).prune()
            assert await read_job_ids(ledger) == set()
        assert await query_job_ids(with_ledger=False) == Counter(accepted)
        contents = await read_contents(ledger, storage)
        assert len(contents.leftovers) == 1, (
            "not only the file of the process that was killed before it registered the file"
        )
        assert contents.missing == ()
