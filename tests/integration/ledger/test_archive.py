"""Jobs are written into the archive before they are removed, and each counts once, whatever is
killed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from sqlalchemy import update

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.archive.archiver import ArchiveFileDamaged, JobArchiver
from switchyard.services.engine.archive.contents import forget_missing, read_contents, remove_old
from switchyard.services.engine.archive.parquet import make_secrets_hider
from switchyard.services.engine.archive.query import (
    ArchiveRange,
    InvalidQuery,
    QueryResult,
    QueryTooCostly,
    run_query,
)
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done
from switchyard.services.engine.jobs.registry import Registry, job, job_type_of
from switchyard.services.engine.jobs.secret_fields import HIDDEN, Secret
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.records.states import AttemptOutcome, State
from switchyard.services.engine.scheduler.retention import Pruner
from tests.support.ended_jobs import ENDED, read_job_ids, record_ended_job
from tests.support.made import claim, finish, message, new_job

DAY = 86_400.0
AGES = RetentionAges(dict.fromkeys(ENDED, 30 * DAY))


class Content(BaseModel):
    text: str = ""
    token: Annotated[str, Secret()] = ""


@job("summarize_content", worker="llm", lanes=("hot",), timeout=60)
async def summarize(payload: Content, ctx: JobContext) -> Done:
    return Done()


class Archive:
    """A ledger with its archive of jobs, and queries over both."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.settings = Settings(data_dir=folder, storage_url=folder.as_uri())
        self.registry = Registry([job_type_of(summarize)])
        self.storage = Storage(self.settings.files_url)

    def archiver(self) -> JobArchiver:
        return JobArchiver(self.settings, self.ledger, self.registry)

    async def prune(self) -> int:
        pruner = Pruner(self.ledger, AGES, archiver=self.archiver())
        return (await pruner.prune()).rows["jobs"]

    async def query(
        self, sql: str, *, limit: int = 1000, timeout: float = 60.0, **archive_range: Any
    ) -> QueryResult:
        return await run_query(
            sql,
            self.ledger,
            self.storage,
            make_secrets_hider(self.registry),
            archive_range=ArchiveRange(**archive_range),
            limit=limit,
            timeout=timeout,
        )

    async def job_ids(self, *, with_ledger: bool = True) -> list[str]:
        answer = await self.query("SELECT id FROM jobs ORDER BY id", with_ledger=with_ledger)
        return [row[0] for row in answer.rows]


@pytest.fixture
async def archive(ledger: Ledger, tmp_path: Path) -> Archive:
    return Archive(ledger, tmp_path)


async def test_a_job_is_read_from_the_archive_as_it_was_with_its_attempts(
    archive: Archive,
) -> None:
    ledger = archive.ledger
    payload = {"text": "Grüße \u0000", "token": "geheim"}
    sent = message(payload=payload, tags={"team": "search"})
    await ledger.jobs.record(new_job(sent))
    await ledger.jobs.claim(claim(sent))
    await ledger.jobs.finish(finish(State.DEAD, outcome=AttemptOutcome.DEAD))
    before = await ledger.job_reads.require("job-1")
    await make_old(ledger, "job-1")
    assert await archive.prune() == 1
    assert await read_job_ids(ledger) == set()
    jobs_seen = await archive.query(
        "SELECT state, payload->>'$.text', payload->>'$.token', tags['team'], attempts, worker_id, "
        "epoch_us(started_at), archived FROM jobs"
    )
    assert jobs_seen.rows == (
        (
            "dead",
            "Grüße \u0000",
            HIDDEN,
            "search",
            1,
            before.worker_id,
            round((before.started_at or 0) * 1e6),
            True,
        ),
    )
    attempts = await archive.query("SELECT job_id, attempt, outcome, worker_id FROM attempts")
    assert attempts.rows == (("job-1", 1, "dead", "worker-1"),)
    contents = await read_contents(ledger, archive.storage)
    [file] = contents.files
    assert (file.jobs, file.attempts, file.kept) == (1, 1, frozenset())
    assert file.settled_at is not None
    assert (contents.missing, contents.leftovers) == ((), ())


async def test_jobs_that_followed_from_each_other_are_archived_in_one_run(
    archive: Archive,
) -> None:
    await record_ended_job(archive.ledger, "root", days=50)
    await record_ended_job(archive.ledger, "stage", days=49, parent_id="root")
    await record_ended_job(archive.ledger, "last", days=48, parent_id="stage")
    await record_ended_job(archive.ledger, "young", days=1)
    assert await archive.prune() == 3
    assert await archive.job_ids(with_ledger=False) == ["last", "root", "stage"]
    assert await archive.job_ids() == ["last", "root", "stage", "young"]
    recent = archive.ledger.clock.time() - 49.5 * DAY
    answer = await archive.query("SELECT id FROM jobs ORDER BY id", since=recent)
    assert answer.rows == (("last",), ("stage",))


class Killed(Exception):
    """Raised where `kill -9` would end the process."""


async def raise_killed(*_: Any, **__: Any) -> Any:
    raise Killed


def kill_after_one_call(remove: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    async def remove_once(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Killed
        return await remove(*arguments, **options)

    return remove_once


@pytest.mark.parametrize("step", ["register", "remove_jobs", "second removal", "settle"])
async def test_a_kill_at_any_step_loses_no_job_and_shows_none_twice(
    archive: Archive, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = archive.ledger
    all_ids = sorted(f"job-{number:02}" for number in range(30))
    for job_id in all_ids:
        await record_ended_job(ledger, job_id)
    pruner = Pruner(ledger, AGES, archiver=archive.archiver())
    with monkeypatch.context() as patch:
        if step == "second removal":
            pruner._removing.size.rows = 20
            remove = kill_after_one_call(ledger.retention.remove_jobs)
            patch.setattr(ledger.retention, "remove_jobs", remove)
        else:
            owner = ledger.retention if step == "remove_jobs" else ledger.archive
            patch.setattr(owner, step, raise_killed)
        with pytest.raises(Killed):
            await pruner.prune()
    remaining = await read_job_ids(ledger)
    assert (
        len(remaining)
        == {"register": 30, "remove_jobs": 30, "second removal": 10, "settle": 0}[step]
    )
    assert await archive.job_ids() == all_ids
    assert await archive.job_ids(with_ledger=False) == sorted(set(all_ids) - remaining)
    leftovers = (await read_contents(ledger, archive.storage)).leftovers
    assert len(leftovers) == (1 if step == "register" else 0)
    assert await archive.prune() == len(remaining)
    assert await read_job_ids(ledger) == set()
    assert await archive.job_ids(with_ledger=False) == all_ids


async def test_a_job_that_changes_after_it_was_written_stays_and_counts_in_the_ledger(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = archive.ledger
    for job_id in ("calm", "changed"):
        await record_ended_job(ledger, job_id)
    register = ledger.archive.register

    async def change_and_register(file: Any) -> bool:
        await set_columns(ledger, "changed", updated_at=jobs.c.updated_at + 1)
        return await register(file)

    with monkeypatch.context() as patch:
        patch.setattr(ledger.archive, "register", change_and_register)
        pruner = Pruner(ledger, AGES, archiver=archive.archiver())
        await pruner.make_pass()
    assert await read_job_ids(ledger) == {"changed"}
    assert await archive.job_ids(with_ledger=False) == ["calm"]
    assert await archive.job_ids() == ["calm", "changed"]
    assert await archive.prune() == 1
    assert await archive.job_ids(with_ledger=False) == ["calm", "changed"]


async def test_two_processes_that_archive_at_once_put_no_job_into_two_files(
    archive: Archive,
) -> None:
    all_ids = sorted(f"job-{number:03}" for number in range(60))
    for job_id in all_ids:
        await record_ended_job(archive.ledger, job_id)
    await asyncio.gather(archive.prune(), archive.prune(), archive.prune())
    await archive.prune()
    assert await read_job_ids(archive.ledger) == set()
    assert await archive.job_ids(with_ledger=False) == all_ids
    assert (await read_contents(archive.ledger, archive.storage)).leftovers == ()


async def test_a_late_process_removes_nothing_for_a_settled_file(archive: Archive) -> None:
    ledger = archive.ledger
    await record_ended_job(ledger, "job-1")
    written_file, _ = await archive.archiver().write(
        ["job-1"], ledger.archive.read_jobs, batch_size=lambda: 9
    )
    assert written_file is not None
    await archive.archiver().settle(written_file)
    removal = await ledger.retention.remove_jobs(AGES, ["job-1"], archived=written_file)
    assert (removal.rows["jobs"], removal.is_complete) == (0, True)
    assert await archive.job_ids(with_ledger=False) == []
    assert await archive.job_ids() == ["job-1"]


async def test_a_file_that_is_gone_stops_queries_until_it_is_forgotten(archive: Archive) -> None:
    for job_id in ("first", "second"):
        await record_ended_job(archive.ledger, job_id)
        await archive.prune()
    [deleted_file, damaged_file] = (await read_contents(archive.ledger, archive.storage)).files
    archive.storage.delete(deleted_file.key)
    archive.storage.put(damaged_file.key, b"cut off")
    with pytest.raises(ArchiveFileDamaged, match=r"is not in the storage.*jobctl archive forget"):
        await archive.job_ids()
    assert (await read_contents(archive.ledger, archive.storage)).missing == (
        deleted_file,
        damaged_file,
    )
    assert await forget_missing(archive.ledger, archive.storage) == (deleted_file,)
    with pytest.raises(ArchiveFileDamaged, match="is not what was written"):
        await archive.job_ids()


async def test_old_files_are_removed_but_not_before_their_jobs(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, storage = archive.ledger, archive.storage
    await record_ended_job(ledger, "first")
    await archive.prune()
    with monkeypatch.context() as patch:
        patch.setattr(JobArchiver, "settle", raise_killed)
        await record_ended_job(ledger, "second")
        with pytest.raises(Killed):
            await archive.prune()
    assert await remove_old(ledger, storage, 3600) == ()
    later = ledger.clock.time() + 7200
    monkeypatch.setattr(ledger.clock, "time", lambda: later)
    (removed,) = await remove_old(ledger, storage, 3600)
    assert not await storage.exists_async(removed.key)
    assert await archive.job_ids() == ["second"]


async def test_the_jobs_of_an_interrupted_file_that_is_gone_stay_in_the_ledger(
    archive: Archive,
) -> None:
    await record_ended_job(archive.ledger, "job-1")
    written_file, _ = await archive.archiver().write(
        ["job-1"], archive.ledger.archive.read_jobs, batch_size=lambda: 9
    )
    assert written_file is not None
    archive.storage.delete(written_file.file.key)
    with pytest.raises(ArchiveFileDamaged):
        await archive.prune()
    assert await read_job_ids(archive.ledger) == {"job-1"}
    await forget_missing(archive.ledger, archive.storage)
    assert await archive.prune() == 1


REFUSED_QUERIES = (
    "COPY jobs TO '{folder}/out.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
    "SELECT 1; SELECT 2",
    "SET memory_limit = '9GB'",
    "ATTACH '{folder}/other.db'",
    "INSERT INTO hidden VALUES ('a', 'b')",
    "DROP VIEW jobs",
    "SELECT * FROM read_text('{folder}/secret.txt')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{folder}/secret.csv'",
    "FROM enable_logging(storage = 'file', storage_path = '{file}')",
    "SELEKT 1",
    "",
)


async def test_a_query_reads_jobs_and_nothing_else(archive: Archive, tmp_path: Path) -> None:
    await record_ended_job(archive.ledger, "job-1")
    await archive.prune()
    (tmp_path / "secret.txt").write_text("geheim")
    (tmp_path / "secret.csv").write_text("geheim\n1\n")
    [file] = (await read_contents(archive.ledger, archive.storage)).files
    content = archive.storage.get(file.key)
    for sql in REFUSED_QUERIES:
        with pytest.raises(InvalidQuery):
            await archive.query(sql.format(folder=tmp_path, file=tmp_path / file.key))
    assert archive.storage.get(file.key) == content


async def test_a_query_is_bounded_in_rows_and_time(archive: Archive) -> None:
    answer = await archive.query("SELECT range AS n, 2 AS n FROM range(1000000)", limit=3)
    assert (answer.columns, answer.rows, answer.more) == (
        ("n", "n_2"),
        ((0, 2), (1, 2), (2, 2)),
        True,
    )
    endless = "SELECT count(*) FROM range(10000000000) AS a, range(10000000000) AS b"
    with pytest.raises(QueryTooCostly, match="--timeout"):
        await archive.query(endless, timeout=0.2)


async def test_an_archive_without_files_has_its_columns(archive: Archive) -> None:
    answer = await archive.query("SELECT count(*), count(payload) FROM jobs")
    assert answer.rows == ((0, 0),)
    assert (await archive.query("SELECT outcome FROM attempts")).rows == ()


async def make_old(ledger: Ledger, job_id: str) -> None:
    finished_at = ledger.clock.time() - 40 * DAY
    await set_columns(
        ledger, job_id, created_at=finished_at, finished_at=finished_at, updated_at=finished_at
    )


async def set_columns(ledger: Ledger, job_id: str, **values: Any) -> None:
    statement = update(jobs).where(jobs.c.id == job_id).values(values)
    await ledger.core.database.write(lambda connection: connection.execute(statement))
