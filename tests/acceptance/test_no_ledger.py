"""No command but `jobctl db upgrade` makes a ledger, so a mistyped address is an error."""

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
def test_a_command_names_the_missing_ledger_and_the_command_that_makes_one(
    jobctl: CommandLine, command: tuple[str, ...], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "typo"
    text = jobctl.fails(*command, JOBS_DATA_DIR=str(elsewhere))
    assert f"there is no ledger at {elsewhere / 'ledger.db'}" in text
    assert "`jobctl db upgrade` creates" in text
    assert not elsewhere.exists()


def test_the_doctor_finds_the_missing_ledger_and_makes_none(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "typo"
    completed = jobctl.run("doctor", JOBS_DATABASE_URL=f"sqlite+aiosqlite:///{elsewhere}/ledger.db")
    assert completed.returncode == 1
    text = " ".join(completed.stdout.split())
    assert "there is no ledger at" in text
    assert "restore it: docs/backup.md" in text  # a new one would be empty
    assert not elsewhere.exists()


def test_the_directory_of_a_new_ledger_is_readable_by_its_owner_alone(bare: CommandLine) -> None:
    """It holds payloads and documents."""
    bare.ok("db", "upgrade")
    directory = Path(bare.environment["JOBS_DATA_DIR"])
    assert directory.stat().st_mode & 0o077 == 0
