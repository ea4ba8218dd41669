"""Clean the storage: remove files that have not been needed for a while.

A file is needed while a job or an operation that has not ended, or a dead letter that can be
redriven, names its key, or the id of the document or job that the file belongs to. The parts of a
document (original, text, results) stay, unless a setting says how long they are kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from switchyard.services.common.files.directory import StoredFile
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.common.files.storage_keys import figures_key

BATCH_SIZE = 100
"""Files that are examined for each query for needed files."""
_CLOCK_TOLERANCE = 10.0
"""Seconds by which the clocks of processes that make jobs may differ."""
_HOUR = 3600.0
_BY_PRODUCTS = re.compile(
    r"uploads/incoming/[^/]+|results/jobs/[^/]+/[^/]+|intermediate/[^/]+/[^/]+/pages/[^/]+"
    r"|intermediate/jobs/.+|sources/[^/]+/[^/]+|health/[^/]+|backfills/[^/]+"
)
"""Uploads that became a document, results of jobs without one, pages that are in the text; answers
of external servers, which are requested again; probes of ended processes; inputs of ended
backfills."""
_PICTURES = re.compile(r"results/([^/]+)/figures/[^/]+")
"""Pictures that were cut out for a list of figures that was never written, or has been replaced:
two jobs may describe a document at once, so neither removes pictures that its list lacks."""
_DOCUMENTS = re.compile(r"uploads/[^/]+/[^/]+|intermediate/.+")
_FOLDERS = ("uploads", "intermediate", "results", "sources", "health", "backfills")
_FOLDERS_OF_OTHERS = ("archive", "llm", "openai")
"""Folders whose old files other code removes; only their unfinished files are removed here."""
_UNFINISHED = re.compile(r".+#\d+")
"""Files that a killed put leaves in a directory; no listing has them."""


class AgeClock(Protocol):
    """The clock by which the ages of files are measured."""

    def time(self) -> float:
        """Return the seconds since the epoch."""
        ...


class FileReferences(Protocol):
    """Tells which files are still needed: the ledger."""

    @property
    def clock(self) -> AgeClock: ...

    async def names_needed(self, *, since: float) -> set[str]:
        """Return the keys and ids that are named by jobs which were made or redriven since the time
        `since`."""
        ...


@dataclass(slots=True)
class CleanupCounts:
    """Counts of removed and kept files."""

    files: int = 0
    bytes: int = 0
    kept: int = 0
    """Files that were old enough, but are needed."""
    unfinished: int = 0
    """Removed files of unfinished uploads."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """How long files are kept, in hours since they were last put."""

    by_products: float
    documents: float | None
    """Originals and texts; None for ever."""

    def is_over(self, stored: StoredFile, now: float) -> bool:
        """Return whether the file is of a kind that expires, and old enough."""
        age = now - stored.modified.timestamp()
        if age > self.by_products * _HOUR and (
            _BY_PRODUCTS.fullmatch(stored.key) or _PICTURES.fullmatch(stored.key)
        ):
            return True
        return (
            self.documents is not None
            and age > self.documents * _HOUR
            and _DOCUMENTS.fullmatch(stored.key) is not None
        )


async def clean(storage: Storage, references: FileReferences, expiry: Expiry) -> CleanupCounts:
    """Remove files that are old and not needed. Safe to interrupt, to repeat, and while everything
    else runs. Raises LedgerUnavailable, and whatever the store raises."""
    counts = CleanupCounts()
    needed: set[str] = set()
    since = 0.0
    # List the old files before the needed names, so that the names include those of new jobs.
    now = min(time.time(), references.clock.time())  # a clock that is wrong makes nothing old
    async for batch in _old_files(storage, expiry, now):
        queried_at = references.clock.time()
        needed |= await references.names_needed(since=max(0.0, since - _CLOCK_TOLERANCE))
        since = queried_at
        referenced = await _listed_pictures(storage, batch)
        for stored in batch:
            if stored.key in referenced:
                continue
            if _is_needed(stored.key, needed):
                counts.kept += 1
                continue
            current = await storage.stat_async(stored.key)
            if current is None or not expiry.is_over(current, now):
                continue  # it was put again meanwhile: a newer job may need it
            await storage.delete_async(stored.key)
            counts.files += 1
            counts.bytes += stored.size
    counts.unfinished = await asyncio.to_thread(_drop_unfinished, storage, expiry, now)
    return counts


async def _old_files(
    storage: Storage, expiry: Expiry, now: float
) -> AsyncIterator[list[StoredFile]]:
    batch: list[StoredFile] = []
    for folder in _FOLDERS:
        async for stored in storage.list_async(folder):
            if expiry.is_over(stored, now):
                batch.append(stored)
            if len(batch) == BATCH_SIZE:
                yield batch
                batch = []
    if batch:
        yield batch


async def _listed_pictures(storage: Storage, batch: Sequence[StoredFile]) -> set[str]:
    """Return the keys of those pictures in the batch that their document's list of figures
    names."""
    pictures: dict[str, set[str]] = {}
    for stored in batch:
        if match := _PICTURES.fullmatch(stored.key):
            pictures.setdefault(match[1], set()).add(stored.key)
    names: set[str] = set()
    for document_id, keys in pictures.items():
        try:
            listing = (await storage.get_async(figures_key(document_id))).decode()
        except NotStored:
            continue
        names |= {key for key in keys if json.dumps(key) in listing}
    return names


def _is_needed(key: str, needed: set[str]) -> bool:
    return key in needed or not needed.isdisjoint(key.split("/"))


def _drop_unfinished(storage: Storage, expiry: Expiry, now: float) -> int:
    dropped = 0
    oldest = now - expiry.by_products * _HOUR
    for path in _unfinished_files(storage.url):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
                dropped += 1
        except FileNotFoundError:
            continue  # another process removed it, or it was finished after all
    return dropped


def _unfinished_files(url: str) -> Iterator[Path]:
    root = directory_of(url)
    if root is None:
        return
    for folder in _FOLDERS + _FOLDERS_OF_OTHERS:
        for path in (root / folder).rglob("*#*"):
            if _UNFINISHED.fullmatch(path.name) and path.is_file():
                yield path
