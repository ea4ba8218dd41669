"""Waiting at the start for a broker or ledger that is away, as ever after."""

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
"""Seconds at most between two looks."""
LOG_REPEAT_INTERVAL = 5.0
"""Seconds between log lines."""
REFUSAL_TIMEOUT = 1.0
"""Seconds for which refusals are tried again: a server that has just started may not know its
vhosts or databases yet."""

T = TypeVar("T")


async def wait_until_available(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what `attempt` gives, tried again for as long as broker or ledger is away. The log
    says when the wait for `what` begins, that it goes on, and when it is over.

    Raises what else `attempt` raises: a password or vhost that is refused, tables that are
    outdated and queues that are missing are for somebody to mend.
    """
    log = structlog.get_logger("start")
    began = time.monotonic()
    last_reason = refused_since = None
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
            if last_reason is None or time.monotonic() - last_reason >= LOG_REPEAT_INTERVAL:
                last_reason = time.monotonic()
                log.warning(f"waiting for the {what}", error=str(error))
        else:
            if last_reason is not None:
                log.info(f"the {what} is there", waited=round(time.monotonic() - began, 1))
            return result
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(pause * 2, MAX_PAUSE)
