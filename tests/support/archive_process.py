"""A process that prunes jobs into an archive and kills itself at a step:
`python -m tests.support.archive_process STEP`. Its settings are in its environment; with the step
`none` it ends normally."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from switchyard.services.common.settings import Settings
from switchyard.services.engine.archive import archiver as archiver_module
from switchyard.services.engine.archive.archiver import JobArchiver
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.retention import RetentionAges
from switchyard.services.engine.scheduler.retention import Pruner

STEPS = ("uploading", "written", "registered", "removing", "removed", "settled")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def run(*arguments: Any, **options: Any) -> Any:
        result = await work(*arguments, **options)
        die()
        return result

    return run


def die_before(_: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def run(*_arguments: Any, **_options: Any) -> Any:
        die()

    return run


async def half_of(path: Path) -> AsyncIterator[bytes]:
    """Yield half of a file, then kill this process."""
    content = path.read_bytes()
    yield content[: len(content) // 2]
    die()


async def main(step: str) -> None:
    settings = Settings()
    async with await Ledger.open(settings.ledger_url) as ledger:
        archiver = JobArchiver(settings, ledger, Registry([]))
        pruner = Pruner(ledger, RetentionAges.of(settings), archiver=archiver)
        pruner._removing.size.rows = 10
        owners: dict[str, tuple[Any, str, Any]] = {
            "written": (ledger.archive, "register", die_before),
            "registered": (ledger.archive, "register", die_after),
            "removing": (ledger.retention, "remove_jobs", die_after),
            "removed": (ledger.archive, "settle", die_before),
            "settled": (ledger.archive, "settle", die_after),
        }
        if step == "uploading":
            archiver_module._read_parts = half_of
        elif step != "none":
            owner, name, make_dying = owners[step]
            setattr(owner, name, make_dying(getattr(owner, name)))
        await pruner.prune()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
