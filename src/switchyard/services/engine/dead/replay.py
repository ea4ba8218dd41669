"""Run a dead letter's handler in a sandbox, to see what a redrive would do.

The handler gets copies of the files that its payload names, a copy of the index, no broker, and a
ledger in which every change is rolled back. Its requests to other servers are real.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from switchyard.broker.lanes import lane_of
from switchyard.broker.message import JobMessage
from switchyard.services.common.files.errors import InvalidKey
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.referenced_keys import texts_in
from switchyard.services.engine.ledger.sql.database import Database, TransactionBody, connect
from switchyard.services.engine.ledger.sql.repository import LedgerCore
from switchyard.services.engine.runtime.brokerless_attempt import Attempt, run_single_attempt

T = TypeVar("T")

FOLDERS = ("uploads", "intermediate", "results")
"""Folders of the storage that have one folder for each document."""


async def replay(
    settings: Settings, registry: Registry, message: JobMessage, routing_key: str
) -> Attempt:
    """Run the handler of a job with its payload. Raises UnknownJobType, NewerPayload,
    InvalidPayload."""
    # Check the payload before anything is copied.
    registry.get(message.job_type).read(message.payload, message.metadata.payload_version)
    async with _sandbox(settings, message) as (sandbox_settings, ledger):
        ctx = JobContext(
            message=message,
            lane=lane_of(routing_key),
            worker_id=f"replay-{os.getpid()}",
            settings=sandbox_settings,
            ledger=ledger,
        )
        return await run_single_attempt(registry, ctx)


@asynccontextmanager
async def _sandbox(
    settings: Settings, message: JobMessage
) -> AsyncIterator[tuple[Settings, Ledger]]:
    """Yield settings and a ledger with which a handler can't change the system."""
    with tempfile.TemporaryDirectory(prefix="switchyard-replay-") as directory:
        base = Path(directory)
        files = base / "files"
        files.mkdir()
        index = base / "index"
        if await asyncio.to_thread(_storage_exists, settings.files_url):
            await _copy_files(Storage(settings.files_url), Storage(files.as_uri()), message)
        await asyncio.to_thread(_copy_index, Path(settings.vectors_url), index)
        sandbox_settings = settings.model_copy(
            update={
                "amqp_url": None,
                "management_url": None,
                "data_dir": base,
                "database_url": SecretStr(f"sqlite+aiosqlite:///{base / 'ledger.db'}"),
                "storage_url": files.as_uri(),
                "index_url": SecretStr(str(index)),
            }
        )
        ledger = Ledger(LedgerCore(_RollbackDatabase(await connect(settings.ledger_url))))
        try:
            yield sandbox_settings, ledger
        finally:
            await ledger.close()


class _RollBack(Exception):
    """Raised in a transaction to roll it back."""


class _RollbackDatabase:
    """A database that rolls every transaction back at its end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dialect = database.dialect
        self.clock = database.clock
        self.location = database.location

    async def read(self, work: TransactionBody[T]) -> T:
        return await self._database.read(work)

    async def write(self, work: TransactionBody[T]) -> T:
        results: list[T] = []

        def run_and_roll_back(connection: Any) -> None:
            results[:] = [work(connection)]
            raise _RollBack

        with suppress(_RollBack):
            await self._database.write(run_and_roll_back)
        return results[0]

    async def write_each(self, work: TransactionBody[T]) -> T:
        return await self.write(work)

    async def sync(self) -> None:
        await self._database.sync()

    async def close(self) -> None:
        await self._database.close()


def _storage_exists(url: str) -> bool:
    """Tell whether the storage exists. A missing directory is not opened, which would create it."""
    directory = directory_of(url)
    return directory is None or directory.is_dir()


def _copy_index(source: Path, target: Path) -> None:
    """Copy an index in a directory; one in an object store begins empty."""
    if source.is_dir():
        shutil.copytree(source, target)


async def _copy_files(source: Storage, target: Storage, message: JobMessage) -> None:
    """Copy the files that the payload names, and those of documents that it names."""
    metadata = message.metadata
    names = {*texts_in(message.payload), message.job_id, metadata.pipeline, metadata.parent_id}
    for name in names - {None}:
        assert name is not None
        try:
            if await source.exists_async(name):
                await target.put_async(name, await source.get_async(name))
            for folder in FOLDERS:
                async for stored in source.list_async(f"{folder}/{name}"):
                    await target.put_async(stored.key, await source.get_async(stored.key))
        except InvalidKey:
            continue  # the text is not a key
