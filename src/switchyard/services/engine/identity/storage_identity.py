"""Make sure that file storage and index belong to the ledger's system, by a mark in each
(ADR 11)."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from switchyard.services.common.errors import Misconfigured
from switchyard.services.common.extras import naming_extra
from switchyard.services.common.files.errors import (
    FileTooLarge,
    NotStored,
    StorageUnavailable,
)
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.common.library_loading import load
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.postgres import (
    claim_database,
    is_postgres,
    without_credentials,
)
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.system import SystemRecord

MARKER = "switchyard-system.json"
FILE_STORAGE = "file storage"
MAX_MARKER_BYTES = 1000
"""Largest marker that is read: whoever can write there may have put anything."""
READ_TIMEOUT = 2.0
"""Seconds for a storage to answer. One that does not answer is skipped, not refused."""
ClaimPlace = Callable[[SystemRecord, bool], Awaitable[str | None]]
"""Marks a place as the system's; with True, also one that is another system's. Returns the
description of that other system if the place is still its own."""
_ID = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9@_-]{1,40}")


class WrongStorage(Misconfigured):
    """File storage or index belong to another system than the ledger. The text names both."""


async def claim_places(
    settings: Settings, ledger: Ledger, *, take: bool = False
) -> tuple[str, ...]:
    """Mark file storage and index as the ledger's where they have no mark; with `take`, in any
    case. Return the names of those that are away: they are skipped, with a line in the log.

    Raises WrongStorage where one is another system's, LedgerError.
    """
    system = await ledger.system.system()
    away: list[str] = []
    for what, (setting, url) in places(settings).items():
        claim, errors = await _claimer_of(url)
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                other_system = await claim(system, take)
        except errors as error:
            reason, *_ = str(error).splitlines() or [f"no answer within {READ_TIMEOUT:g} s"]
            structlog.get_logger("system").warning("system not checked", of=what, error=reason)
            away.append(what)
            continue
        if other_system is not None:
            raise WrongStorage(
                f"the ledger at {ledger.location} is of the system {system}, and the {what} at "
                f"{without_credentials(url)} of the system {other_system}: set {setting} to a "
                "place of its own, or JOBS_DATABASE_URL to that system's ledger. If that ledger is "
                "gone for good, `jobctl system adopt` gives the place to this one"
            )
    return tuple(away)


def places(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the setting and the address of each place."""
    index = settings.vectors_url
    return {
        FILE_STORAGE: ("JOBS_STORAGE_URL", settings.files_url),
        "index": (
            "JOBS_INDEX_URL",
            index if "://" in index else Path(index).absolute().as_uri(),
        ),
    }


async def _claimer_of(url: str) -> tuple[ClaimPlace, tuple[type[Exception], ...]]:
    """Return the function that claims a place, and the errors by which it tells that the place is
    away. Only the library that the place needs is loaded: none for a directory, the usual case."""
    errors = (StorageUnavailable, OSError, ValueError)
    if is_postgres(url):
        await load("asyncpg")
        from asyncpg import InterfaceError, PostgresError

        return partial(_claim_database, url), (*errors, PostgresError, InterfaceError)
    if (directory := directory_of(url)) is not None:
        return partial(_claim_directory, directory), errors
    with naming_extra():
        await load("obstore.exceptions")
        from obstore.exceptions import BaseError

    return partial(_claim_storage, Storage(url)), (*errors, BaseError)


async def _claim_database(url: str, system: SystemRecord, take: bool) -> str | None:
    return _other_owner(await claim_database(url, _mark_of(system), take=take), system)


async def _claim_storage(storage: Storage, system: SystemRecord, take: bool) -> str | None:
    mark = _mark_of(system).encode()
    if take:
        await storage.put_async(MARKER, mark)
        return None
    try:
        content = await storage.get_async(MARKER, max_bytes=MAX_MARKER_BYTES)
    except NotStored:
        if await storage.put_new_async(MARKER, mark):
            return None
        content = await storage.get_async(MARKER, max_bytes=MAX_MARKER_BYTES)
    except FileTooLarge:
        content = b""
    return _other_owner(content, system)


async def _claim_directory(directory: Path, system: SystemRecord, take: bool) -> str | None:
    mark = await asyncio.to_thread(_mark_directory, directory / MARKER, _mark_of(system), take)
    return _other_owner(mark, system)


def _mark_directory(marker: Path, mark: str, take: bool) -> bytes:
    """Write the marker's file atomically unless it exists, or, with `take`, in any case. Return its
    content."""
    if take or not marker.exists():
        marker.parent.mkdir(parents=True, exist_ok=True)
        new = marker.with_name(f"{marker.name}#{os.urandom(6).hex()}")
        try:
            new.write_text(mark)
            if take:
                new.replace(marker)
            else:
                with suppress(FileExistsError):  # another process was faster
                    marker.hardlink_to(new)
        finally:
            new.unlink(missing_ok=True)
    with marker.open("rb") as file:
        return file.read(MAX_MARKER_BYTES + 1)


def _mark_of(system: SystemRecord) -> str:
    return json.dumps({"id": system.id, "name": system.name})


def _other_owner(mark: bytes | str, system: SystemRecord) -> str | None:
    """Return the description of the system that a mark names; None if it is this system."""
    try:
        fields = json.loads(mark)
        owner_id, name = str(fields["id"]), str(fields["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        owner_id, name = "", ""
    if not _ID.fullmatch(owner_id) or not _NAME.fullmatch(name):
        return f"unknown ({MARKER} can't be read)"
    return None if owner_id == system.id else f"{name} ({owner_id})"
