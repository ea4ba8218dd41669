"""Turn the errors of AMQP libraries into this package's own.

`ChannelLoss` tells a broker that closes the channel because it refuses a message from one that is
unreachable, for both publishers.

aiormq fails with its own errors, and while a connection goes down with any error of its inner
parts: `StopAsyncIteration` where the peer closes at once (under uvloop), a bare `Exception`
where a channel is opened on a connection that has just ended, `ValueError` where the peer knows
no confirms, a cancellation that nobody has asked for. So aiormq is called within
`library_calls`, after which CHANNEL_ERRORS are all errors that a caller need handle.
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
"""Errors of a call whose channel or connection fails, is refused, or is gone already."""

ANSWER_TIMEOUT = 5.0
"""Seconds that a broker may take to open a channel or describe a queue. Missing heartbeats also
reveal a silent peer, but take half a minute."""


@contextmanager
def library_calls() -> Iterator[None]:
    """Wrap calls of aiormq, and nothing else: they raise one of CHANNEL_ERRORS, and no other error.

    A cancellation of the task goes through; one that aiormq made up does not.
    """
    try:
        yield
    except (BrokerError, *CHANNEL_ERRORS):
        raise
    except asyncio.CancelledError as error:
        # aiormq cancels calls that wait on a connection whose heartbeats stopped. The caller's task
        # was not cancelled, so it must not end as if it had been.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ChannelInvalidStateError("the connection is closed: it was silent") from error
    except Exception as error:
        reason = str(error) or "the connection was closed"
        raise ChannelInvalidStateError(reason) from error


@asynccontextmanager
async def time_limit(seconds: float | None = ANSWER_TIMEOUT) -> AsyncIterator[None]:
    """Wrap calls that a broker answers at once, however busy it is.

    Raises TimeoutError, one of CHANNEL_ERRORS, where it does not within so many
    seconds; None waits for as long as the connection lasts.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(str(error) or f"no answer within {seconds:g} s") from error


_LIMIT_TEXT = re.compile(
    r"NOT_ALLOWED - .*(?:limit \(\d+\) is reached|has reached the maximum allowed)"
)
"""RabbitMQ's texts for a reached limit: of a vhost, a user or a node; of connections or channels.
Measured on 3.10 and 4.3. It then closes the connection with the same code as for a missing
vhost."""


def unavailable_error(text: str) -> BrokerUnavailable:
    """Return the error for a connection that could not be made or used, LimitReached where the text
    says so; nothing was published."""
    kind = LimitReached if _LIMIT_TEXT.search(text) else BrokerUnavailable
    return kind(text, maybe_accepted=False)


@contextmanager
def raising_broker_unavailable(what: str) -> Iterator[None]:
    """Turn CHANNEL_ERRORS into BrokerUnavailable: "`what`: the reason". Nothing was published."""
    try:
        yield
    except CHANNEL_ERRORS as error:
        silent = isinstance(error, TimeoutError)
        reason = str(error) or ("no answer in time" if silent else type(error).__name__)
        raise unavailable_error(f"{what}: {reason}") from error


_REPLY_CODES = {
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
"""AMQP 0-9-1's reply codes for errors of a publish, by the beginning of RabbitMQ's text. All other
codes concern the broker's state: forced, out of resources, internal error."""
_CONSUMER_TEXTS = re.compile(r"unknown delivery tag|delivery acknowledgement|consumer")
"""Texts of a closed channel of which no publish is the cause."""
_TOO_LARGE_TEXT = re.compile(r"message size (\d+).* max(?:imum)? (?:message )?size (\d+)")
"""RabbitMQ's text of a message that is too large: its bytes, and the most that are taken."""
_TOPIC_TEXT = re.compile(r"access to topic '(.*)' in exchange '(.*)' in vhost")
_EXCHANGE_TEXT = re.compile(r"(?:access to|no|to internal) exchange '(.*?)' in vhost")


@dataclass(frozen=True, slots=True)
class ChannelLoss:
    """The end of a channel or its connection, with the reason that the broker or the library
    gave."""

    reason: str

    def as_error(self, exchange: str, routing_key: str, size: int, *, alone: bool) -> PublishError:
        """Return what the loss means for one of the publishes that waited for their confirm;
        `alone`: it was the only one. `size` is that of its body in bytes.

        The broker does not say which message it refused, but gives its size, or its exchange and
        topic. Where it gives neither, a message that was alone is to blame; of several, any may be.
        """
        text = f"{routing_key!r} was not confirmed: {self.reason}"
        code = next((code for name, code in _REPLY_CODES.items() if name in self.reason), None)
        if code is None or _CONSUMER_TEXTS.search(self.reason) is not None:
            return BrokerUnavailable(
                f"the connection was lost before {routing_key!r} was confirmed: {self.reason}",
                maybe_accepted=True,
            )
        if (sizes := _TOO_LARGE_TEXT.search(self.reason)) is not None:
            is_to_blame = size > int(sizes[2])
        elif (topic := _TOPIC_TEXT.search(self.reason)) is not None:
            is_to_blame = topic.groups() == (routing_key, exchange)
        elif (named := _EXCHANGE_TEXT.search(self.reason)) is not None:
            is_to_blame = named[1] == exchange
        else:
            is_to_blame = alone
        if not is_to_blame:
            return BrokerUnavailable(text, maybe_accepted=True, closed_by_some_message=True)
        if sizes is not None:
            return MessageTooLarge(size, int(sizes[2]))
        if code == _REPLY_CODES["ACCESS_REFUSED"]:
            return NotPermitted(exchange, routing_key, self.reason)
        if code == _REPLY_CODES["NOT_FOUND"]:
            return Unroutable(exchange, routing_key)
        return NeverTaken(f"the broker refuses the message: {self.reason}")
