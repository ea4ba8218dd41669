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
from tests.support.ended_jobs import ENDED, ended, known
from tests.support.made import claim, finish, message, new_job

DAY = 86_400.0
AGES = RetentionAges(dict.fromkeys(ENDED, 30 * DAY))


class Letter(BaseModel):
    text: str = ""
    token: Annotated[str, Secret()] = ""


@job("summarize_content", worker="llm", lanes=("hot",), timeout=60)
async def write_letter(payload: Letter, ctx: JobContext) -> Done:
    return Done()


class Archive:
    """A system with an archive, and what a query sees of it."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.settings = Settings(data_dir=folder, storage_url=folder.as_uri())
        self.registry = Registry([job_type_of(write_letter)])
        self.storage = Storage(self.settings.files_url)

    def archiver(self) -> JobArchiver:
        return JobArchiver(self.settings, self.ledger, self.registry)

    async def prune(self) -> int:
        pruner = Pruner(self.ledger, AGES, archiver=self.archiver())
        return (await pruner.prune()).rows["jobs"]

    async def ask(
        self, sql: str, *, limit: int = 1000, timeout: float = 60.0, **wanted: Any
    ) -> QueryResult:
        return await run_query(
            sql,
            self.ledger,
            self.storage,
            make_secrets_hider(self.registry),
            archive_range=ArchiveRange(**wanted),
            limit=limit,
            timeout=timeout,
        )

    async def ids(self, *, with_ledger: bool = True) -> list[str]:
        answer = await self.ask("SELECT id FROM jobs ORDER BY id", with_ledger=with_ledger)
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
    await age(ledger, "job-1")
    assert await archive.prune() == 1
    assert await known(ledger) == set()
    jobs_seen = await archive.ask(
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
    tried = await archive.ask("SELECT job_id, attempt, outcome, worker_id FROM attempts")
    assert tried.rows == (("job-1", 1, "dead", "worker-1"),)
    contents = await read_contents(ledger, archive.storage)
    [file] = contents.files
    assert (file.jobs, file.attempts, file.kept) == (1, 1, frozenset())
    assert file.settled_at is not None
    assert (contents.missing, contents.leftovers) == ((), ())


async def test_jobs_that_followed_from_each_other_are_archived_in_one_run(
    archive: Archive,
) -> None:
    await ended(archive.ledger, "root", days=50)
    await ended(archive.ledger, "stage", days=49, parent_id="root")
    await ended(archive.ledger, "last", days=48, parent_id="stage")
    await ended(archive.ledger, "young", days=1)
    assert await archive.prune() == 3
    assert await archive.ids(with_ledger=False) == ["last", "root", "stage"]
    assert await archive.ids() == ["last", "root", "stage", "young"]
    recent = archive.ledger.clock.time() - 49.5 * DAY
    answer = await archive.ask("SELECT id FROM jobs ORDER BY id", since=recent)
    assert answer.rows == (("last",), ("stage",))


class Killed(Exception):
    """In the place of `kill -9`."""


async def killed(*_: Any, **__: Any) -> Any:
    raise Killed


def killed_after_one(remove: Callable[..., Any]) -> Callable[..., Any]:
    calls = 0

    async def removing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Killed
        return await remove(*arguments, **options)

    return removing


@pytest.mark.parametrize("place", ["register", "remove_jobs", "second removal", "settle"])
async def test_a_kill_at_any_step_loses_no_job_and_shows_none_twice(
    archive: Archive, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = archive.ledger
    everything = sorted(f"job-{number:02}" for number in range(30))
    for job_id in everything:
        await ended(ledger, job_id)
    pruner = Pruner(ledger, AGES, archiver=archive.archiver())
    with monkeypatch.context() as patch:
        if place == "second removal":
            pruner._removing.size.rows = 20
            remove = killed_after_one(ledger.retention.remove_jobs)
            patch.setattr(ledger.retention, "remove_jobs", remove)
        else:
            owner = ledger.retention if place == "remove_jobs" else ledger.archive
            patch.setattr(owner, place, killed)
        with pytest.raises(Killed):
            await pruner.prune()
    left = await known(ledger)
    assert (
        len(left) == {"register": 30, "remove_jobs": 30, "second removal": 10, "settle": 0}[place]
    )
    assert await archive.ids() == everything
    assert await archive.ids(with_ledger=False) == sorted(set(everything) - left)
    leftovers = (await read_contents(ledger, archive.storage)).leftovers
    assert len(leftovers) == (1 if place == "register" else 0)
    assert await archive.prune() == len(left)
    assert await known(ledger) == set()
    assert await archive.ids(with_ledger=False) == everything


async def test_a_job_that_changes_after_it_was_written_stays_and_counts_in_the_ledger(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = archive.ledger
    for job_id in ("calm", "changed"):
        await ended(ledger, job_id)
    register = ledger.archive.register

    async def change_and_register(file: Any) -> bool:
        await set_columns(ledger, "changed", updated_at=jobs.c.updated_at + 1)
        return await register(file)

    with monkeypatch.context() as patch:
        patch.setattr(ledger.archive, "register", change_and_register)
        pruner = Pruner(ledger, AGES, archiver=archive.archiver())
        await pruner.make_pass()
    assert await known(ledger) == {"changed"}
    assert await archive.ids(with_ledger=False) == ["calm"]
    assert await archive.ids() == ["calm", "changed"]
    assert await archive.prune() == 1
    assert await archive.ids(with_ledger=False) == ["calm", "changed"]


async def test_two_processes_that_archive_at_once_put_no_job_into_two_files(
    archive: Archive,
) -> None:
    everything = sorted(f"job-{number:03}" for number in range(60))
    for job_id in everything:
        await ended(archive.ledger, job_id)
    await asyncio.gather(archive.prune(), archive.prune(), archive.prune())
    await archive.prune()
    assert await known(archive.ledger) == set()
    assert await archive.ids(with_ledger=False) == everything
    assert (await read_contents(archive.ledger, archive.storage)).leftovers == ()


async def test_a_late_process_removes_nothing_for_a_settled_file(archive: Archive) -> None:
    ledger = archive.ledger
    await ended(ledger, "job-1")
    written, _ = await archive.archiver().write(
        ["job-1"], ledger.archive.read_jobs, batch_size=lambda: 9
    )
    assert written is not None
    await archive.archiver().settle(written)
    removal = await ledger.retention.remove_jobs(AGES, ["job-1"], archived=written)
    assert (removal.rows["jobs"], removal.is_complete) == (0, True)
    assert await archive.ids(with_ledger=False) == []
    assert await archive.ids() == ["job-1"]


async def test_a_file_that_is_gone_stops_queries_until_it_is_forgotten(archive: Archive) -> None:
    for job_id in ("first", "second"):
        await ended(archive.ledger, job_id)
        await archive.prune()
    [file, other] = (await read_contents(archive.ledger, archive.storage)).files
    archive.storage.delete(file.key)
    archive.storage.put(other.key, b"cut off")
    with pytest.raises(ArchiveFileDamaged, match=r"is not in the storage.*jobctl archive forget"):
        await archive.ids()
    assert (await read_contents(archive.ledger, archive.storage)).missing == (file, other)
    assert await forget_missing(archive.ledger, archive.storage) == (file,)
    with pytest.raises(ArchiveFileDamaged, match="is not what was written"):
        await archive.ids()


async def test_files_go_when_their_age_is_over_and_not_before_their_jobs(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, storage = archive.ledger, archive.storage
    await ended(ledger, "first")
    await archive.prune()
    with monkeypatch.context() as patched:
        patched.setattr(JobArchiver, "settle", killed)
        await ended(ledger, "second")
        with pytest.raises(Killed):
            await archive.prune()
    assert await remove_old(ledger, storage, 3600) == ()
    at = ledger.clock.time() + 7200
    monkeypatch.setattr(ledger.clock, "time", lambda: at)
    (removed,) = await remove_old(ledger, storage, 3600)
    assert not await storage.exists_async(removed.key)
    assert await archive.ids() == ["second"]


async def test_the_jobs_of_an_interrupted_file_that_is_gone_stay_in_the_ledger(
    archive: Archive,
) -> None:
    await ended(archive.ledger, "job-1")
    written, _ = await archive.archiver().write(
        ["job-1"], archive.ledger.archive.read_jobs, batch_size=lambda: 9
    )
    assert written is not None
    archive.storage.delete(written.file.key)
    with pytest.raises(ArchiveFileDamaged):
        await archive.prune()
    assert await known(archive.ledger) == {"job-1"}
    await forget_missing(archive.ledger, archive.storage)
    assert await archive.prune() == 1


REFUSED = (
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
    await ended(archive.ledger, "job-1")
    await archive.prune()
    (tmp_path / "secret.txt").write_text("geheim")
    (tmp_path / "secret.csv").write_text("geheim\n1\n")
    [file] = (await read_contents(archive.ledger, archive.storage)).files
    before = archive.storage.get(file.key)
    for sql in REFUSED:
        with pytest.raises(InvalidQuery):
            await archive.ask(sql.format(folder=tmp_path, file=tmp_path / file.key))
    assert archive.storage.get(file.key) == before


async def test_an_answer_has_bounds_of_rows_and_time(archive: Archive) -> None:
    answer = await archive.ask("SELECT range AS n, 2 AS n FROM range(1000000)", limit=3)
    assert (answer.columns, answer.rows, answer.more) == (
        ("n", "n_2"),
        ((0, 2), (1, 2), (2, 2)),
        True,
    )
    endless = "SELECT count(*) FROM range(10000000000) AS a, range(10000000000) AS b"
    with pytest.raises(QueryTooCostly, match="--timeout"):
        await archive.ask(endless, timeout=0.2)


async def test_an_archive_without_files_has_its_columns(archive: Archive) -> None:
    answer = await archive.ask("SELECT count(*), count(payload) FROM jobs")
    assert answer.rows == ((0, 0),)
    assert (await archive.ask("SELECT outcome FROM attempts")).rows == ()


async def age(ledger: Ledger, job_id: str) -> None:
    at = ledger.clock.time() - 40 * DAY
    await set_columns(ledger, job_id, created_at=at, finished_at=at, updated_at=at)


async def set_columns(ledger: Ledger, job_id: str, **values: Any) -> None:
    statement = update(jobs).where(jobs.c.id == job_id).values(values)
    await ledger.core.database.write(lambda connection: connection.execute(statement))
