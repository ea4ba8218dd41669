"""Sizes of tables, files, queues and indexes in bytes; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableUsage:
    """A table of the ledger."""

    name: str
    rows: int
    bytes: int | None
    """Size with indexes; None where the database does not report it."""
    since: float | None
    """When its oldest row was made; None where unknown."""
    rows_of_last_day: int | None


@dataclass(frozen=True, slots=True)
class LedgerUsage:
    """The ledger as a whole."""

    bytes: int
    free_bytes: int
    """Free space within the file, which is reused before the file grows."""
    tables: tuple[TableUsage, ...]


@dataclass(frozen=True, slots=True)
class FilesUsage:
    """Files of one kind: the first part of their keys."""

    kind: str
    files: int
    bytes: int
    since: float | None
    """When the oldest file was written."""
    bytes_of_last_day: int


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """A queue of the broker."""

    name: str
    messages: int
    bytes: int
    """Bytes of the messages' bodies."""


@dataclass(frozen=True, slots=True)
class SystemUsage:
    """Disk usage of a system. Parts that were away or took too long are None, with the reason in
    `missing`."""

    ledger: LedgerUsage | None
    files: tuple[FilesUsage, ...] | None
    index_bytes: int | None
    queues: tuple[QueueUsage, ...] | None
    missing: dict[str, str]
