"""What "the broker is away" can look like, whatever the AMQP library makes of it.

aiormq fails with its own errors, and while a connection goes down with whatever its inner parts
have raised: `StopAsyncIteration` where the peer closes at once (under uvloop), a bare `Exception`
where a channel is opened on a connection that has just ended, `ValueError` where the peer knows
no confirms, a cancellation that nobody has asked for. Who calls aiormq does so within
`library_calls`, and then needs to know CHANNEL_ERRORS alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiormq.exceptions import AMQPError, ChannelInvalidStateError

from switchyard.broker.errors import BrokerAway, BrokerError

CHANNEL_ERRORS = (AMQPError, ChannelInvalidStateError, OSError)
"""What a call fails with whose channel or connection fails, is refused, or is gone already."""

ANSWER_LIMIT = 5.0
"""Seconds for a broker to open a channel, or to tell of a queue. Missing heartbeats tell of a peer
that has fallen silent, too, and take half a minute."""


@contextmanager
def library_calls() -> Iterator[None]:
    """Around calls of aiormq and of nothing else: what they raise is one of CHANNEL_ERRORS.

    A cancellation of the task goes through; one that aiormq made up does not.
    """
    try:
        yield
    except (BrokerError, *CHANNEL_ERRORS):
        raise
    except asyncio.CancelledError as error:
        # aiormq cancels what waits on a connection whose heartbeats stopped. Nobody has
        # cancelled the caller's task, so it must not end as if somebody had.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ChannelInvalidStateError("the connection is closed: it was silent") from error
    except Exception as error:
        reason = str(error) or "the connection was closed"
        raise ChannelInvalidStateError(reason) from error


@asynccontextmanager
async def within(seconds: float | None = ANSWER_LIMIT) -> AsyncIterator[None]:
    """Around calls that a broker answers at once, however much it has to do.

    Raises TimeoutError, which is one of CHANNEL_ERRORS, where it does not within so many seconds;
    None waits for as long as the connection lasts.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} s") from error


@contextmanager
def meaning_away(what: str) -> Iterator[None]:
    """Let CHANNEL_ERRORS mean BrokerAway: "`what`: the reason". Nothing was published."""
    try:
        yield
    except CHANNEL_ERRORS as error:
        silent = isinstance(error, TimeoutError)
        reason = str(error) or ("no answer in time" if silent else type(error).__name__)
        raise BrokerAway(f"{what}: {reason}", maybe_accepted=False) from error
