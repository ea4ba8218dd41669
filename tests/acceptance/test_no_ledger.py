"""A mistyped address, or the wrong folder, never makes a new ledger in passing."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import CommandLine

COMMANDS = (
    ("publish", "hot.work", "--payload", "{}"),
    ("worker", "tester"),
    ("scheduler",),
    ("api", "--port", "0"),
    ("lanes",),
    ("jobs", "list"),
    ("dead", "list"),
    ("backfill", "list"),
    ("keys", "list"),
    ("workers",),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_says_where_there_is_none_and_what_makes_one(
    jobctl: CommandLine, command: tuple[str, ...], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "typo"
    said = jobctl.fails(*command, JOBS_DATA_DIR=str(elsewhere))
    assert f"there is no ledger at {elsewhere / 'ledger.db'}" in said
    assert "`jobctl db upgrade` creates" in said
    assert not elsewhere.exists()


def test_the_doctor_says_so_and_makes_none(jobctl: CommandLine, tmp_path: Path) -> None:
    elsewhere = tmp_path / "typo"
    done = jobctl.run("doctor", JOBS_DATABASE_URL=f"sqlite+aiosqlite:///{elsewhere}/ledger.db")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "there is no ledger at" in said
    assert "restore it: docs/backup.md" in said  # a new one would be empty
    assert not elsewhere.exists()


def test_a_directory_that_is_made_for_a_ledger_is_its_owners_alone(bare: CommandLine) -> None:
    """It has payloads and documents; the doctor warns of one that others may read."""
    bare.ok("db", "upgrade")
    made = Path(bare.environment["JOBS_DATA_DIR"])
    assert made.stat().st_mode & 0o077 == 0
