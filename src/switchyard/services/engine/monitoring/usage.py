"""Measure the disk usage of ledger, files, index and queues."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from typing import TypeVar

from switchyard.broker.errors import ManagementError
from switchyard.broker.management.client import ManagementClient
from switchyard.services.common.durations import DAY
from switchyard.services.common.errors import TemporarilyUnavailable
from switchyard.services.common.files.errors import StorageUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.usage import FilesUsage, QueueUsage, SystemUsage

T = TypeVar("T")


async def measure_usage(
    settings: Settings, ledger: Ledger, *, timeout: float | None
) -> SystemUsage:
    """Measure all parts at once, each for at most `timeout` seconds. Parts that can't be measured
    are left out, and listed in the result with the reason."""
    missing: dict[str, str] = {}

    async def measure_part(name: str, part: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(timeout):
                return await part
        except TimeoutError:
            missing[name] = f"it took more than {timeout:g} s"
        except (LedgerError, StorageUnavailable, ManagementError, NotMeasured) as error:
            missing[name] = str(error)
        return None

    ledger_usage, files, index, queues = await asyncio.gather(
        measure_part("ledger", ledger.table_sizes.usage()),
        measure_part("files", _measure_files(settings)),
        measure_part("index", _measure_index(settings)),
        measure_part("queues", _measure_queues(settings)),
    )
    return SystemUsage(ledger_usage, files, index, queues, dict(sorted(missing.items())))


class NotMeasured(TemporarilyUnavailable):
    """A part can't be measured from here; the text says what to do instead."""


async def _measure_files(settings: Settings) -> tuple[FilesUsage, ...]:
    day_ago = time.time() - DAY
    files, sizes, sizes_of_last_day = Counter[str](), Counter[str](), Counter[str]()
    oldest: dict[str, float] = {}
    async for stored in Storage(settings.files_url).list_async():
        kind = stored.key.partition("/")[0]
        modified = stored.modified.timestamp()
        files[kind] += 1
        sizes[kind] += stored.size
        sizes_of_last_day[kind] += stored.size if modified > day_ago else 0
        oldest[kind] = min(modified, oldest.get(kind, modified))
    kinds = [
        FilesUsage(kind, number, sizes[kind], oldest[kind], sizes_of_last_day[kind])
        for kind, number in files.items()
    ]
    return tuple(sorted(kinds, key=lambda each: (-each.bytes, each.kind)))


async def _measure_index(settings: Settings) -> int:
    url = settings.vectors_url
    if url.startswith(("postgresql", "postgres")):
        raise NotMeasured("it lies in PostgreSQL: `\\dt+` of its database shows its tables")
    return await Storage(url).size_async()


async def _measure_queues(settings: Settings) -> tuple[QueueUsage, ...]:
    if settings.amqp_url is None:
        raise NotMeasured("no broker is set: JOBS_AMQP_URL")
    async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
        sizes = await client.queue_sizes()
    queues = [QueueUsage(name, messages, size) for name, (messages, size) in sizes.items()]
    return tuple(sorted(queues, key=lambda each: (-each.bytes, -each.messages, each.name)))
