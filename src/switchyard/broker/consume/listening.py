"""Keep consumers listening: start them again after an outage, a closed channel, a deleted queue.

Every consumer that lives as long as its process is started here: the lanes' consumers, the listener
for commands, the event feed, the index of dead letters. An error that is not the broker's is raised
to the caller's supervisor (`broker.task_supervisor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiormq.connection import Connection
from structlog.typing import FilteringBoundLogger

from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import close_quietly
from switchyard.broker.wire.failures import CHANNEL_ERRORS
from switchyard.broker.wire.incoming import Incoming
from switchyard.broker.wire.reconnector import MAX_BACKOFF, MIN_BACKOFF, Reconnector

T = TypeVar("T")

Listen = Callable[[Connection, Callable[[], None]], Awaitable[None]]
"""Consumes on a connection until that ends by itself, and calls its second argument,
`reset_backoff`, once it receives messages."""


async def keep_listening(
    reconnector: Reconnector,
    listen: Listen,
    log: FilteringBoundLogger,
    event: str,
    *,
    stopping: asyncio.Event | None = None,
    retry_on: tuple[type[Exception], ...] = (),
    **context: Any,
) -> None:
    """Call `listen` whenever it has ended or failed, after a pause: from MIN_BACKOFF seconds,
    doubled up to MAX_BACKOFF. The next pause is the first again once `listen` has called
    `reset_backoff`, or when the connection is a new one.

    Ends when `stopping` is set and `listen` has returned. A failure, one of CHANNEL_ERRORS or of
    `retry_on`, is logged as `event` with `context`.
    """
    stopping = stopping or asyncio.Event()
    failures: tuple[type[Exception], ...] = (*CHANNEL_ERRORS, *retry_on)
    pause = MIN_BACKOFF
    last_connection: object = None

    def reset_backoff() -> None:
        nonlocal pause
        pause = MIN_BACKOFF

    while not stopping.is_set():
        try:
            connection = await run_until_event(stopping, reconnector.connection())
            if connection is None:
                return
            if connection is not last_connection:
                last_connection, pause = connection, MIN_BACKOFF
            await listen(connection, reset_backoff)
        except failures as error:
            log.warning(event, error=str(error), next_try_in=pause, **context)
        await run_until_event(stopping, asyncio.sleep(pause))
        pause = min(pause * 2, MAX_BACKOFF)


async def consume_exchange(
    connection: Connection,
    reset_backoff: Callable[[], None],
    exchange: str,
    received: Callable[[bytes], None],
    *,
    tag: str,
    routing_key: str = "",
) -> None:
    """Consume an exchange's messages, by a queue that is deleted with its connection.

    Returns when the channel or the queue is gone. Messages are acknowledged before `received` is
    called with their body.
    """
    channel = await open_channel(connection, confirms=False)

    def acknowledge(message: Incoming) -> None:
        channel.ack(message.delivery_tag)
        received(message.body)

    try:
        channel_ended = end_event(channel)
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        queue = declared.queue or ""
        await channel.queue_bind(queue, exchange, routing_key=routing_key)
        await channel.consume(queue, f"{tag}.{queue}", acknowledge)
        reset_backoff()
        await channel_ended.wait()
    finally:
        await close_quietly(channel)


def end_event(channel: PipelinedChannel) -> asyncio.Event:
    """Return an event that is set as soon as nothing more comes on a channel: it is closed, or the
    broker has cancelled one of its consumers, as when a queue is deleted."""
    channel_ended = asyncio.Event()

    def end(_: object) -> None:
        channel_ended.set()

    channel.closed.add_done_callback(end)
    channel.on_consumer_cancel_callbacks.add(end)
    return channel_ended


async def run_until_event(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None when `event` is set first; `work` is cancelled then."""
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
