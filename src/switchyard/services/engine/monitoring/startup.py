"""Wait for a broker or ledger that is away when a process starts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from switchyard.broker.errors import BrokerAuthError, BrokerUnavailable
from switchyard.services.engine.records.errors import LedgerAuthError, LedgerUnavailable

MAX_PAUSE = 0.5
"""Seconds between two attempts, at most."""
LOG_REPEAT_INTERVAL = 5.0
"""Seconds between log lines."""
REFUSAL_TIMEOUT = 1.0
"""Seconds for which refused attempts are repeated: a server that has just started may not know its
vhosts or databases yet."""

T = TypeVar("T")


async def wait_until_available(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `attempt`, which is repeated for as long as broker or ledger is away.
    Logs the beginning and the end of the wait for `what`, and every LOG_REPEAT_INTERVAL seconds
    that it goes on.

    Raises other errors of `attempt`, which an operator must fix: a refused password or vhost,
    outdated tables, missing queues.
    """
    log = structlog.get_logger("start")
    began = time.monotonic()
    logged_at = refused_since = None
    pause = 0.1
    while True:
        try:
            result = await attempt()
        except (BrokerUnavailable, LedgerUnavailable) as error:
            if not isinstance(error, BrokerAuthError | LedgerAuthError):
                refused_since = None
            elif refused_since is None:
                refused_since = time.monotonic()
            elif time.monotonic() - refused_since >= REFUSAL_TIMEOUT:
                raise
            if logged_at is None or time.monotonic() - logged_at >= LOG_REPEAT_INTERVAL:
                logged_at = time.monotonic()
                log.warning(f"waiting for the {what}", error=str(error))
        else:
            if logged_at is not None:
                log.info(f"the {what} is there", waited=round(time.monotonic() - began, 1))
            return result
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(pause * 2, MAX_PAUSE)
