"""Records of the archive: the Parquet files that the ledger knows, and the jobs for the next one.
Times are seconds since the epoch; in names with `_us`, whole microseconds, as Parquet stores
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ARCHIVE_FOLDER = "archive"
"""Folder in the storage; it has one folder for each day, in UTC."""


def microseconds(moment: float) -> int:
    """Return a time in seconds as whole microseconds."""
    return round(moment * 1_000_000)


@dataclass(frozen=True, slots=True)
class JobVersion:
    """Identifies a job and the version of its record: another job may get the same id later."""

    created_us: int
    updated_us: int


@dataclass(frozen=True, slots=True)
class JobsToArchive:
    """Rows of jobs, and what goes into the archive with them."""

    jobs: Sequence[Mapping[str, Any]]
    attempts: Sequence[Mapping[str, Any]]
    """Oldest first."""
    tags: Mapping[str, Mapping[str, str]]
    """Tags by job id."""
    seconds: float
    """Seconds that the transaction took."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A complete file of the archive."""

    number: int
    """Number of the file, in the order in which files were registered."""
    key: str
    """Key in the storage."""
    jobs: int
    attempts: int
    bytes: int
    sha256: str
    """Hexadecimal."""
    oldest_at: float
    newest_at: float
    """When the oldest and the newest of its jobs were made."""
    created_at: float
    settled_at: float | None = None
    """When the last of its jobs was removed from the ledger; None while some may be in both."""
    kept: frozenset[str] = frozenset()
    """Ids of its jobs that were not removed from the ledger, as something needed them again. Their
    records in the ledger count, and not those in the file."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A registered file, with its jobs."""

    file: ArchiveFile
    versions: Mapping[str, JobVersion]
    """Its jobs by id, as they were archived."""
