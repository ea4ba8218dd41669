"""Backfills of a test's system: sources that a test controls, and a runner for them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from switchyard.services.common.files.storage import Storage
from switchyard.services.engine.backfill.files import store_input
from switchyard.services.engine.backfill.formats import FileFormat
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.progress import BackfillProgress, progress_of
from switchyard.services.engine.backfill.sources import (
    Cursor,
    Item,
    Source,
    Sources,
    SourceUnreachable,
    Unusable,
)
from switchyard.services.engine.backfill.spec import parse_spec
from switchyard.services.engine.backfill.starting import Backfills
from switchyard.services.engine.bulk.control import require_bulk
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation
from switchyard.services.engine.records.requests import JobFilter
from tests.support.brokers import TestBroker
from tests.support.system import System, open_system

QUEUE = "backfill.llm"


class NumberOptions(BaseModel):
    to: int
    away_at: int | None = None
    """Number at which the first reading fails, as if the source were unreachable."""
    hangs_at: int | None = None
    broken_at: int | None = None
    keys: int | None = None
    """Number of different keys, which repeat; None: each item has its own."""


class Numbers(Source):
    """0, 1, 2, … as a source that somebody could have written."""

    name: ClassVar[str] = "numbers"
    Options = NumberOptions
    options: NumberOptions
    job_type: ClassVar[str | None] = "noop"
    broken: ClassVar[set[str]] = set()

    async def total(self) -> int | None:
        return self.options.to

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item | Unusable]:
        for number in range(cursor["n"] if cursor else 0, self.options.to):
            if number == self.options.away_at and cursor is None:
                raise SourceUnreachable("the numbers have gone out")
            if number == self.options.hangs_at:
                await asyncio.Event().wait()
            if number == self.options.broken_at:
                raise KeyError("a mistake")
            key = number % self.options.keys if self.options.keys else number
            yield Item(str(key), {"n": number}, {"n": number + 1})


class BackfillUser:
    """Starts, runs and inspects backfills of a test's system."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.storage = Storage(system.settings.files_url)
        self.sources = Sources.load([__name__])
        self.backfills = Backfills(
            system.settings, system.registry, system.ledger, self.storage, self.sources
        )

    def runner(self) -> BulkRunner:
        system = self.system
        handler = BackfillHandler(
            system.settings, system.registry, system.ledger, self.sources, lanes=system.lanes
        )
        return BulkRunner(system.ledger, [handler])

    async def start(
        self,
        source: str,
        options: Mapping[str, Any],
        *,
        rate: float | None = None,
        max_open: int | None = None,
        budget: float | None = None,
        **spec: Any,
    ) -> BulkOperation:
        """Record a backfill; `spec` are further fields of its BackfillSpec."""
        backfill_spec = parse_spec({"source": source, "options": options, **spec})
        return await self.backfills.start(
            backfill_spec, created_by="test", rate=rate, max_open=max_open, budget=budget
        )

    async def store(
        self, data: bytes | Iterable[object], file_format: FileFormat = FileFormat.JSONL
    ) -> dict[str, str]:
        """Store a file, given as bytes or as values of JSON Lines, and return the options of its
        source."""
        if not isinstance(data, bytes):
            data = b"".join(json.dumps(value).encode() + b"\n" for value in data)

        async def parts() -> AsyncIterator[bytes]:
            for start in range(0, len(data), 65_536):
                yield data[start : start + 65_536]

        key = await store_input(self.storage, parts(), file_format)
        return {"key": key, "format": file_format.value}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BulkRunner]:
        """Run a BulkRunner, as a scheduler does."""
        runner = self.runner()
        task = asyncio.create_task(runner.run())
        try:
            yield runner
        finally:
            runner.stop()
            await task

    async def run(self, operation: BulkOperation) -> BulkOperation:
        """Run it in the foreground to its end."""
        return await self.runner().run_one(operation.id)

    async def progress(self, operation: BulkOperation) -> BackfillProgress:
        operation_now = await require_bulk(self.system.ledger, operation.id)
        return await progress_of(self.system.ledger, operation_now)


@asynccontextmanager
async def open_backfills(
    broker: TestBroker, url: str, directory: Path, **options: Any
) -> AsyncIterator[tuple[System, BackfillUser]]:
    """Open a system with its files below the directory; `options` are those of `open_system`."""
    files = (directory / "files").as_uri()
    async with open_system(broker, url, storage_url=files, **options) as system:
        yield system, BackfillUser(system)


async def read_numbers(ledger: Ledger) -> list[int]:
    """Return the numbers of all jobs of `noop`, sorted."""
    job_numbers: list[int] = []
    cursor: str | None = None
    while True:
        page = await ledger.job_reads.list_jobs(
            JobFilter(job_type="noop"), limit=1000, cursor=cursor
        )
        for job in page.items:
            record = await ledger.job_reads.get(job.id)
            assert record is not None
            job_numbers.append(record.payload["n"])
        cursor = page.next_cursor
        if cursor is None:
            return sorted(job_numbers)
