"""Claiming what was away when a process began, as soon as it is there."""

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
"""Seconds between looks whether it is there."""


@asynccontextmanager
async def claiming(
    settings: Settings, ledger: Ledger, stop: Callable[[], None], *, again: float = RETRY_INTERVAL
) -> AsyncIterator[None]:
    """Claim file storage and index for the ledger's system, now or as soon as they and the ledger
    are there. Where one turns out later to be another system's, `stop` is called.

    Raises WrongStorage, at the beginning or, after `stop`, at the end; LedgerAuthError.
    """
    looking: asyncio.Task[None] | None = None
    if not await _claim(settings, ledger):
        looking = asyncio.create_task(_keep_claiming(settings, ledger, again))
        looking.add_done_callback(lambda task: _stop_if_failed(task, stop))
    try:
        yield
    finally:
        if looking is not None:
            await end_tasks(looking)
    if looking is not None and not looking.cancelled():
        looking.result()


async def _claim(settings: Settings, ledger: Ledger) -> bool:
    """Tell whether all that there is was claimed."""
    try:
        return not await claim_places(settings, ledger)
    except LedgerAuthError:
        raise
    except LedgerUnavailable:
        return False


async def _keep_claiming(settings: Settings, ledger: Ledger, again: float) -> None:
    while True:
        await asyncio.sleep(again)
        with suppress(LedgerAuthError):  # who uses the ledger says so
            if await _claim(settings, ledger):
                return


def _stop_if_failed(task: asyncio.Task[None], stop: Callable[[], None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    structlog.get_logger("system").error("this process can't go on", error=str(error))
    stop()
