"""Migrations are one chain, each named by its number: two that were made at the same time are seen
here at once, without a database."""

import re
from pathlib import Path

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
