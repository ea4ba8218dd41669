import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import switchyard.services.engine.ledger.sql
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION, metadata
from switchyard.services.engine.records.errors import (
    LedgerError,
    LedgerMissing,
    ProgramOutdated,
    SchemaOutdated,
)
from switchyard.services.engine.records.results import Created
from switchyard.services.engine.records.states import State
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.support.made import new_job


def make_config() -> Config:
    config = Config()
    folder = Path(switchyard.services.engine.ledger.sql.__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder))
    return config


def list_revisions() -> list[str]:
    """Return the numbers of all migrations, oldest first."""
    scripts = ScriptDirectory.from_config(make_config())
    newest_first = [script.revision for script in scripts.walk_revisions()]
    return newest_first[::-1]


REVISIONS = list_revisions()


async def test_the_migrated_tables_are_those_of_the_program(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    async with await Ledger.open(empty_database_url) as ledger:
        # Each wing's tables are declared when its repositories are loaded.
        LlmLedger(ledger)
        PipelineLedger(ledger)
    database = await connect(empty_database_url)

    def find_differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    try:
        assert await database.read(find_differences) == []
    finally:
        await database.close()


async def test_tables_that_grow_with_every_job_are_vacuumed_early(postgres_url: str) -> None:
    database = await connect(postgres_url)

    def read_early_tables(connection: Connection) -> list[str]:
        query = text(
            "SELECT relname FROM pg_class, unnest(reloptions) AS setting "
            "WHERE setting = 'autovacuum_vacuum_insert_scale_factor=0.02' ORDER BY relname"
        )
        return list(connection.scalars(query))

    try:
        assert await database.read(read_early_tables) == [
            "attempts",
            "dead_letters",
            "job_tags",
            "jobs",
        ]
    finally:
        await database.close()


async def test_upgrading_again_changes_nothing(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    async with await Ledger.open(empty_database_url) as ledger:
        await ledger.jobs.record(new_job())
        await upgrade(empty_database_url)
        await ledger.check()
        assert await ledger.job_reads.get("job-1") is not None


async def test_upgrades_at_the_same_time_all_succeed(empty_database_url: str) -> None:
    await asyncio.gather(*(upgrade(empty_database_url) for _ in range(8)))
    async with await Ledger.open(empty_database_url, check=True) as ledger:
        assert await ledger.jobs.record(new_job()) == Created("job-1")


async def test_an_empty_database_says_what_to_run(empty_database_url: str) -> None:
    with pytest.raises(SchemaOutdated, match="jobctl db upgrade"):
        await Ledger.open(empty_database_url, check=True)
    async with await Ledger.open(empty_database_url) as ledger:
        with pytest.raises(SchemaOutdated, match="jobctl db upgrade"):
            await ledger.jobs.record(new_job())


async def test_tables_of_an_older_version_are_refused(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    database = await connect(empty_database_url)
    statement = text("UPDATE alembic_version SET version_num = '0000'")
    await database.write(lambda connection: connection.execute(statement))
    await database.close()
    async with await Ledger.open(empty_database_url) as ledger:
        with pytest.raises(SchemaOutdated, match="jobctl db upgrade"):
            await ledger.check()


@pytest.mark.parametrize(
    ("oldest_program", "is_allowed"), [(SCHEMA_REVISION, True), ("9998", False)]
)
async def test_newer_tables_are_used_if_they_allow_this_program(
    empty_database_url: str, oldest_program: str, is_allowed: bool
) -> None:
    """The tables are those of a later release, which has added a column."""
    await upgrade(empty_database_url)
    database = await connect(empty_database_url)

    def migrate(connection: Connection) -> str:
        own_oldest_program: str = connection.execute(
            text("SELECT oldest_program FROM system_id")
        ).scalar_one()
        connection.execute(text("ALTER TABLE jobs ADD COLUMN novelty TEXT"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("UPDATE system_id SET oldest_program = :o"), {"o": oldest_program})
        return own_oldest_program

    assert await database.write(migrate) <= SCHEMA_REVISION
    await database.close()
    async with await Ledger.open(empty_database_url) as ledger:
        if is_allowed:
            await ledger.check()
            await upgrade(empty_database_url)  # an older program leaves the tables as they are
            assert await ledger.jobs.record(new_job()) == Created("job-1")
            assert await ledger.job_reads.get("job-1") is not None
        else:
            with pytest.raises(ProgramOutdated, match="install a newer one"):
                await ledger.check()
            with pytest.raises(ProgramOutdated):
                await upgrade(empty_database_url)


async def test_a_missing_file_is_no_ledger_and_is_not_made(sqlite_url: str) -> None:
    file = Path(sqlite_url.removeprefix("sqlite+aiosqlite:///"))
    with pytest.raises(LedgerMissing, match=f"there is no ledger at {file}"):
        await Ledger.open(sqlite_url, check=True)
    async with await Ledger.open(sqlite_url) as ledger:
        with pytest.raises(LedgerMissing):
            await ledger.jobs.record(new_job())
        with pytest.raises(LedgerMissing):
            await ledger.job_reads.get("job-1")
    assert list(file.parent.iterdir()) == []


async def test_an_upgrade_returns_the_location_and_whether_the_ledger_is_new(
    empty_database_url: str,
) -> None:
    first, second = await upgrade(empty_database_url), await upgrade(empty_database_url)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.location == second.location
    assert "@" not in first.location
    assert first.location.endswith(empty_database_url.rpartition("/")[2])


async def test_the_file_is_made_with_its_directory(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'new' / 'deep' / 'ledger.db'}"
    await upgrade(url)
    assert (tmp_path / "new" / "deep" / "ledger.db").exists()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense", "sqlite+aiosqlite://"])
async def test_an_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(LedgerError, match="sqlite"):
        await Ledger.open(url)


def test_the_program_knows_the_newest_migration() -> None:
    assert REVISIONS[-1] == SCHEMA_REVISION


@pytest.mark.parametrize("versions", [REVISIONS[:1], REVISIONS[:-1]], ids=["first", "each"])
async def test_a_ledger_of_an_earlier_version_keeps_its_jobs(
    empty_database_url: str, versions: list[str]
) -> None:
    """From the first version at once, or through each version in turn, with a job of each."""
    database = await connect(empty_database_url, create=True)
    insert_job = text(
        "INSERT INTO jobs (id, job_type, lane, routing_key, worker, priority, state, source, "
        "attempts, max_attempts, redrives, crashes, created_at, updated_at, payload, metadata) "
        "VALUES (:id, 'noop', 'hot', 'hot.noop', 'llm', 5, 'queued', '', 0, 3, 0, 0, 1, 1, "
        "'{}', '{}')"
    )

    def migrate(connection: Connection, version: str) -> None:
        config = make_config()
        config.attributes["connection"] = connection
        command.upgrade(config, version)
        connection.execute(insert_job, {"id": f"job-{version}"})

    for version in versions:
        await database.write(partial(migrate, version=version))
    await database.close()
    await upgrade(empty_database_url)
    async with await Ledger.open(empty_database_url, check=True) as ledger:
        states = await ledger.job_reads.states([f"job-{version}" for version in versions])
        assert states == {f"job-{version}": State.QUEUED for version in versions}
        record = await ledger.job_reads.get(f"job-{versions[-1]}")
        assert record is not None
        assert record.payload == {}
