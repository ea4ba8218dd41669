"""Claim file storage and index for the ledger's system, also where they are away at first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.storage_identity import claim_places
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerAuthError, LedgerUnavailable

RETRY_INTERVAL = 5.0
"""Seconds between attempts to claim what was away."""


@asynccontextmanager
async def claiming(
    settings: Settings,
    ledger: Ledger,
    stop: Callable[[], None],
    *,
    retry_interval: float = RETRY_INTERVAL,
) -> AsyncIterator[None]:
    """Claim file storage and index now, or in the background as soon as they and the ledger are
    there. If one then turns out to be another system's, `stop` is called.

    Raises WrongStorage, at the beginning or, after `stop`, at the end; LedgerAuthError.
    """
    retries: asyncio.Task[None] | None = None
    if not await _claim(settings, ledger):
        retries = asyncio.create_task(_keep_claiming(settings, ledger, retry_interval))
        retries.add_done_callback(lambda task: _stop_if_failed(task, stop))
    try:
        yield
    finally:
        if retries is not None:
            await end_tasks(retries)
    if retries is not None and not retries.cancelled():
        retries.result()


async def _claim(settings: Settings, ledger: Ledger) -> bool:
    """Claim both; return False if one of them, or the ledger, is away."""
    try:
        return not await claim_places(settings, ledger)
    except LedgerAuthError:
        raise
    except LedgerUnavailable:
        return False


async def _keep_claiming(settings: Settings, ledger: Ledger, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        with suppress(LedgerAuthError):  # reported by those who use the ledger
            if await _claim(settings, ledger):
                return


def _stop_if_failed(task: asyncio.Task[None], stop: Callable[[], None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    structlog.get_logger("system").error("this process can't go on", error=str(error))
    stop()
