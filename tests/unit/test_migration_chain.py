"""Migrations are one chain, each named by its number: two that were made at the same time are seen
here at once, without a database."""

import re
from pathlib import Path

import pytest

from switchyard.services.engine.ledger import sql
from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION

VERSIONS = Path(sql.__path__[0]) / "migrations" / "versions"


def test_each_migration_follows_the_one_before() -> None:
    names = sorted(path.name for path in VERSIONS.glob("v*.py"))
    numbers = [name[1:5] for name in names]
    first = int(numbers[0])
    assert numbers == [f"{first + n:04}" for n in range(len(names))], "two have one number"
    for name, number in zip(names, numbers, strict=True):
        code = (VERSIONS / name).read_text()
        before = None if number == numbers[0] else f"{int(number) - 1:04}"
        assert re.findall(r'^revision = "(\d+)"', code, re.MULTILINE) == [number], name
        found = re.findall(r'^down_revision = (?:"(\d+)"|None)', code, re.MULTILINE)
        assert found == [before or ""], name
    assert numbers[-1] == SCHEMA_REVISION


TAKES_AWAY = re.compile(r"drop_|rename_|alter_column|DROP |RENAME |ALTER (?!TABLE \S+ SET \()")
FIRST_OF_THE_RULE = "0034"


def takes_away(code: str) -> bool:
    """Whether an older program may miss what a migration changes: docs/architecture.md."""
    added = re.findall(r"add_column\((?:[^()]|\([^()]*\))*\)", code)
    unfilled = [each for each in added if "nullable=False" in each and "server_def" not in each]
    return bool(TAKES_AWAY.search(code) or unfilled)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('op.add_column("jobs", Column("tags", Text))', False),
        ('op.add_column("jobs", Column("n", Text, nullable=False, server_default="0"))', False),
        ('op.create_table("x", Column("n", Text, nullable=False))', False),
        ('op.add_column("jobs", Column("n", Text, nullable=False))', True),
        ('op.drop_column("jobs", "n")', True),
        ('op.execute("ALTER TABLE jobs ADD CHECK (n > 0)")', True),
        ('op.execute("ALTER TABLE jobs SET (fillfactor = 90)")', False),
    ],
)
def test_what_takes_away_is_known(code: str, expected: bool) -> None:
    assert takes_away(code) is expected


def test_a_migration_that_takes_away_names_the_oldest_program_that_may_stay() -> None:
    for path in VERSIONS.glob("v*.py"):
        code = path.read_text()
        named = re.findall(r'^oldest_program = "(\d{4})"', code, re.MULTILINE)
        assert all(oldest <= path.name[1:5] for oldest in named), path.name
        if path.name[1:5] >= FIRST_OF_THE_RULE and takes_away(code):
            assert named, (
                f"{path.name} takes away: docs/architecture.md#changing-tables-in-two-steps"
            )
