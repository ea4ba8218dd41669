"""Migrations are one chain, each named by its number. Two with the same number fail here, without
a database."""

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
        previous = None if number == numbers[0] else f"{int(number) - 1:04}"
        assert re.findall(r'^revision = "(\d+)"', code, re.MULTILINE) == [number], name
        down_revisions = re.findall(r'^down_revision = (?:"(\d+)"|None)', code, re.MULTILINE)
        assert down_revisions == [previous or ""], name
    assert numbers[-1] == SCHEMA_REVISION


CONTRACTING_CODE = re.compile(
    r"drop_|rename_|alter_column|DROP |RENAME |ALTER (?!TABLE \S+ SET \()"
)
FIRST_CHECKED_REVISION = "0034"


def contracts(code: str) -> bool:
    """Return whether a migration may break an older program: docs/architecture.md."""
    added = re.findall(r"add_column\((?:[^()]|\([^()]*\))*\)", code)
    without_default = [
        each for each in added if "nullable=False" in each and "server_def" not in each
    ]
    return bool(CONTRACTING_CODE.search(code) or without_default)


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
def test_a_contracting_migration_is_recognised(code: str, expected: bool) -> None:
    assert contracts(code) is expected


def test_a_contracting_migration_names_the_oldest_program() -> None:
    for path in VERSIONS.glob("v*.py"):
        code = path.read_text()
        oldest_programs = re.findall(r'^oldest_program = "(\d{4})"', code, re.MULTILINE)
        assert all(oldest <= path.name[1:5] for oldest in oldest_programs), path.name
        if path.name[1:5] >= FIRST_CHECKED_REVISION and contracts(code):
            assert oldest_programs, (
                f"{path.name} contracts: see docs/architecture.md#changing-tables-in-two-steps"
            )
