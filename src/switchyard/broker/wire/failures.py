"""What "the broker is away" can look like, whatever the AMQP library makes of it.

A broker that is there, and closes the channel because it refuses what it was sent, is told apart
from that by `Loss`, for both publishers.

aiormq fails with its own errors, and while a connection goes down with whatever its inner parts
have raised: `StopAsyncIteration` where the peer closes at once (under uvloop), a bare `Exception`
where a channel is opened on a connection that has just ended, `ValueError` where the peer knows
no confirms, a cancellation that nobody has asked for. Who calls aiormq does so within
`library_calls`, and then needs to know CHANNEL_ERRORS alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from aiormq.exceptions import AMQPError, ChannelInvalidStateError

from switchyard.broker.errors import (
    BrokerError,
    BrokerUnavailable,
    LimitReached,
    MessageTooLarge,
    NeverTaken,
    NotPermitted,
    PublishError,
    Unroutable,
)

CHANNEL_ERRORS = (AMQPError, ChannelInvalidStateError, OSError)
"""What a call fails with whose channel or connection fails, is refused, or is gone already."""

ANSWER_TIMEOUT = 5.0
"""Seconds for a broker to open a channel, or to tell of a queue. Missing heartbeats tell of a peer
that has fallen silent, too, and take half a minute."""


@contextmanager
def library_calls() -> Iterator[None]:
    """Wrap calls of aiormq, and nothing else: what they raise is one of CHANNEL_ERRORS.

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
async def time_limit(seconds: float | None = ANSWER_TIMEOUT) -> AsyncIterator[None]:
    """Wrap calls that a broker answers at once, however much it has to do.

    Raises TimeoutError, which is one of CHANNEL_ERRORS, where it does not within so many
    seconds; None waits for as long as the connection lasts.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} s") from error


_LIMIT = re.compile(r"NOT_ALLOWED - .*(?:limit \(\d+\) is reached|has reached the maximum allowed)")
"""RabbitMQ's texts of a limit: of a vhost, a user or a node; of connections or channels. Measured
on 3.10 and 4.3. It closes the connection with the code that it has for a vhost that is not
there."""


def away(text: str) -> BrokerUnavailable:
    """Return the error of a connection that could not be made or used, by what is known of the
    reason; nothing was published."""
    kind = LimitReached if _LIMIT.search(text) else BrokerUnavailable
    return kind(text, maybe_accepted=False)


@contextmanager
def raising_broker_unavailable(what: str) -> Iterator[None]:
    """Let CHANNEL_ERRORS mean BrokerUnavailable: "`what`: the reason". Nothing was published."""
    try:
        yield
    except CHANNEL_ERRORS as error:
        silent = isinstance(error, TimeoutError)
        reason = str(error) or ("no answer in time" if silent else type(error).__name__)
        raise away(f"{what}: {reason}") from error


_NAMES = {
    "ACCESS_REFUSED": 403,
    "NOT_FOUND": 404,
    "PRECONDITION_FAILED": 406,
    "CONTENT_TOO_LARGE": 311,
    "FRAME_ERROR": 501,
    "SYNTAX_ERROR": 502,
    "COMMAND_INVALID": 503,
    "UNEXPECTED_FRAME": 505,
    "NOT_IMPLEMENTED": 540,
}
"""AMQP 0-9-1's reply codes for what a publish may have done wrong, as RabbitMQ's texts begin. All
others say how the broker is: forced, out of resources, broken inside."""
_CONSUMING = re.compile(r"unknown delivery tag|delivery acknowledgement|consumer")
"""What the broker closes a channel for, and no publish has done."""
_SIZES = re.compile(r"message size (\d+).* max(?:imum)? (?:message )?size (\d+)")
"""RabbitMQ's text of a message that is too large: its bytes, and the most that are taken."""
_TOPIC = re.compile(r"access to topic '(.*)' in exchange '(.*)' in vhost")
_EXCHANGE = re.compile(r"(?:access to|no|to internal) exchange '(.*?)' in vhost")


@dataclass(frozen=True, slots=True)
class Loss:
    """The end of a channel or its connection, as the broker or the library has told it."""

    reason: str

    def as_error(self, exchange: str, routing_key: str, size: int, *, alone: bool) -> PublishError:
        """Return what the loss means for one of the publishes that waited for their confirm;
        `alone`: it was the only one. `size` is that of its body in bytes.

        The broker does not say which message it has refused, but what it was: its size, where it
        went. Of others, whichever was alone is to blame; if several were, any of them may be.
        """
        text = f"{routing_key!r} was not confirmed: {self.reason}"
        code = next((code for name, code in _NAMES.items() if name in self.reason), None)
        if code is None or _CONSUMING.search(self.reason) is not None:
            return BrokerUnavailable(
                f"the connection was lost before {routing_key!r} was confirmed: {self.reason}",
                maybe_accepted=True,
            )
        if (sizes := _SIZES.search(self.reason)) is not None:
            is_it = size > int(sizes[2])
        elif (topic := _TOPIC.search(self.reason)) is not None:
            is_it = topic.groups() == (routing_key, exchange)
        elif (named := _EXCHANGE.search(self.reason)) is not None:
            is_it = named[1] == exchange
        else:
            is_it = alone
        if not is_it:
            return BrokerUnavailable(text, maybe_accepted=True, closed_by_some_message=True)
        if sizes is not None:
            return MessageTooLarge(size, int(sizes[2]))
        if code == _NAMES["ACCESS_REFUSED"]:
            return NotPermitted(exchange, routing_key, self.reason)
        if code == _NAMES["NOT_FOUND"]:
            return Unroutable(exchange, routing_key)
        return NeverTaken(f"the broker refuses the message: {self.reason}")
