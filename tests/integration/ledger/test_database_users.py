"""`jobctl db users`: the processes' users may read and write rows, and nothing else."""

import asyncio
import json

import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner

from switchyard.cli.system.db import app
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql import database_users as users
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.results import Created
from tests.support.made import new_job

Logins = dict[str, str]
"""The URL of each role's user."""


@pytest.fixture
def owner_url(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("JOBS_DATABASE_URL", postgres_url)
    return postgres_url


@pytest.fixture
def prefix(owner_url: str) -> str:
    """A prefix of user names of this test alone: users belong to the server, not to a database."""
    return owner_url.rpartition("/")[2]


@pytest.fixture
def logins(owner_url: str, prefix: str) -> Logins:
    """The URL of each role's user, made by the command."""
    created = json.loads(CliRunner().invoke(app, ["users", "--prefix", prefix, "--json"]).stdout)
    return {user["name"].rpartition("_")[2]: user["url"] for user in created}


async def execute(url: str, statement: str) -> None:
    database = await connect(url)
    try:
        await database.write(lambda connection: connection.execute(text(statement)))
    finally:
        await database.close()


async def test_the_application_works_with_the_ledger_and_the_reader_sees_it(
    logins: Logins,
) -> None:
    async with await Ledger.open(logins["application"], check=True) as ledger:
        assert await ledger.jobs.record(new_job()) == Created("job-1")
    async with await Ledger.open(logins["reader"], check=True) as ledger:
        assert await ledger.job_reads.get("job-1") is not None
        with pytest.raises(LedgerError, match="permission denied for table"):
            await ledger.jobs.record(new_job("job-2"))


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("application", "DROP TABLE jobs"),
        ("application", "ALTER TABLE jobs ADD COLUMN more text"),
        ("application", "TRUNCATE jobs"),
        ("application", "CREATE TABLE more (id int)"),
        ("application", "UPDATE alembic_version SET version_num = '0001'"),
        ("application", "CREATE ROLE another"),
        ("reader", "DELETE FROM jobs"),
        ("reader", "DROP TABLE jobs"),
    ],
)
async def test_a_role_may_run_no_other_statement(logins: Logins, role: str, statement: str) -> None:
    with pytest.raises(LedgerError, match=r"permission denied|must be owner"):
        await execute(logins[role], statement)


async def test_the_roles_may_use_a_table_of_a_later_upgrade_at_once(
    owner_url: str, logins: Logins
) -> None:
    await execute(owner_url, "CREATE TABLE later (id bigserial PRIMARY KEY, word text)")
    await execute(logins["application"], "INSERT INTO later (word) VALUES ('in')")
    await execute(logins["reader"], "SELECT * FROM later")
    with pytest.raises(LedgerError, match="permission denied"):
        await execute(logins["reader"], "DELETE FROM later")


def test_passwords_are_kept_renewed_or_given(
    logins: Logins, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*options: str) -> str:
        result = CliRunner().invoke(app, ["users", "--prefix", prefix, *options])
        assert result.exit_code == 0, result.output
        return result.output

    assert "it keeps its password" in run()
    asyncio.run(execute(logins["reader"], "SELECT 1"))
    assert logins["reader"] not in run("--renew")
    with pytest.raises(LedgerError, match="password authentication failed"):
        asyncio.run(execute(logins["reader"], "SELECT 1"))
    monkeypatch.setenv("JOBS_READER_PASSWORD", 'it\'s %1 "given" $1 :x')
    assert "given" not in run()
    server_address = logins["reader"].rpartition("@")[2]
    password = "it%27s%20%251%20%22given%22%20%241%20%3Ax"
    asyncio.run(
        execute(f"postgresql+asyncpg://{prefix}_reader:{password}@{server_address}", "SELECT 1")
    )


async def test_no_statement_has_a_password_in_it(
    owner_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    run = users._run_quoted

    def record_statement(connection: Connection, *parts: str) -> None:
        statements.extend(parts)
        run(connection, *parts)

    monkeypatch.setattr(users, "_run_quoted", record_statement)
    (user, _) = await users.make_database_users(owner_url, prefix)
    assert user.password
    assert any("ROLE %I" in statement for statement in statements)
    assert not any(user.password in statement for statement in statements)
    with pytest.raises(LedgerError, match="printable ASCII"):
        await users.make_database_users(owner_url, prefix, passwords={"reader": "größer"})


def test_whoever_does_not_own_the_tables_is_told_who_does(
    logins: Logins, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_DATABASE_URL", logins["application"])
    result = CliRunner().invoke(app, ["users", "--prefix", prefix])
    assert result.exit_code != 0
    assert "the ledger's tables belong to 'test'" in str(result.exception)


def test_an_empty_database_and_sqlite_say_what_is_missing(
    empty_postgres_url: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_DATABASE_URL", empty_postgres_url)
    assert "jobctl db upgrade" in str(CliRunner().invoke(app, ["users"]).exception)
    monkeypatch.setenv("JOBS_DATABASE_URL", sqlite_url)
    assert CliRunner().invoke(app, ["upgrade"]).exit_code == 0
    assert "SQLite, which has no users" in str(CliRunner().invoke(app, ["users"]).exception)
