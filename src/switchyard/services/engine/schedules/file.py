"""The file of schedules (JOBS_SCHEDULES): TOML, a table for each entry under its name."""

from __future__ import annotations

from pathlib import Path

from switchyard.services.common.errors import Misconfigured
from switchyard.services.common.toml_file import InvalidToml, read_toml
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.rule import InvalidSchedule


class InvalidScheduleFile(Misconfigured):
    """The file can't be read, or an entry in it is invalid; the text says which and why."""


def read_file(path: Path, registry: Registry) -> list[ScheduleEntry]:
    """Return the entries, each checked against its job type. Raises InvalidScheduleFile."""
    try:
        tables = read_toml(path)
    except InvalidToml as error:
        raise InvalidScheduleFile(f"JOBS_SCHEDULES: {error}") from error
    entries = []
    for name, table in tables.items():
        try:
            entry = _entry(name, table)
            entry.check(registry, remote=False)
        except InvalidSchedule as error:
            raise InvalidScheduleFile(f"JOBS_SCHEDULES: {path}, [{name}]: {error}") from error
        entries.append(entry)
    return entries


def fingerprint_of(path: Path) -> tuple[int, ...] | None:
    """Return a fingerprint of the file (mtime, size, inode, device); None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


def _entry(name: str, table: object) -> ScheduleEntry:
    if not isinstance(table, dict):
        raise InvalidSchedule(f"expected a TOML table: write [{name}], and its settings below")
    if "name" in table:
        raise InvalidSchedule("its name stands in the brackets: leave `name` out")
    return ScheduleEntry.from_fields({"name": name} | table)
