"""Listening, and again after whatever ends it: the broker away, a channel closed, a queue gone.

All that hears a queue for as long as it lives is kept listening here: the lanes' consumers, the
listener for commands, the event feed, the index of dead letters. What is no failure of the broker
goes on to whoever runs them (`broker.task_supervisor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from aiormq.connection import Connection
from structlog.typing import FilteringBoundLogger

from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import closed
from switchyard.broker.wire.failures import CHANNEL_ERRORS
from switchyard.broker.wire.incoming import Incoming
from switchyard.broker.wire.link import FIRST_BACKOFF, LAST_BACKOFF, Link

T = TypeVar("T")

Listen = Callable[[Connection, Callable[[], None]], Awaitable[None]]
"""Listens on a connection until that ends by itself; calls the function once it hears."""


async def keep_listening(
    link: Link,
    listen: Listen,
    log: FilteringBoundLogger,
    complaint: str,
    *,
    stopping: asyncio.Event | None = None,
    also: tuple[type[Exception], ...] = (),
    **context: Any,
) -> None:
    """Call `listen` whenever it has ended or failed, after a pause: from FIRST_BACKOFF seconds,
    doubled up to LAST_BACKOFF, and from the first again once it hears or has connected anew.

    Ends when `stopping` is set and `listen` has returned. A failure, one of CHANNEL_ERRORS or of
    `also`, is logged as `complaint` with `context`.
    """
    stopping = stopping or asyncio.Event()
    failures: tuple[type[Exception], ...] = (*CHANNEL_ERRORS, *also)
    pause = FIRST_BACKOFF
    last: object = None

    def hears() -> None:
        nonlocal pause
        pause = FIRST_BACKOFF

    while not stopping.is_set():
        try:
            connection = await until_event(stopping, link.connection())
            if connection is None:
                return
            if connection is not last:
                last, pause = connection, FIRST_BACKOFF
            await listen(connection, hears)
        except failures as error:
            log.warning(complaint, error=str(error), next_try_in=pause, **context)
        await until_event(stopping, asyncio.sleep(pause))
        pause = min(pause * 2, LAST_BACKOFF)


async def hear_exchange(
    connection: Connection,
    hears: Callable[[], None],
    exchange: str,
    received: Callable[[bytes], None],
    *,
    tag: str,
    routing_key: str = "",
) -> None:
    """Hear what is published to an exchange, on a queue that goes away with its connection.

    Returns when the channel or the queue is gone. Messages are acknowledged before `received` is
    called with their body.
    """
    channel = await open_channel(connection, confirms=False)

    def take(message: Incoming) -> None:
        channel.ack(message.delivery_tag)
        received(message.body)

    try:
        over = end_of(channel)
        declared = await channel.queue_declare(exclusive=True, auto_delete=True)
        queue = declared.queue or ""
        await channel.queue_bind(queue, exchange, routing_key=routing_key)
        await channel.consume(queue, f"{tag}.{queue}", take)
        hears()
        await over.wait()
    finally:
        await closed(channel)


def end_of(channel: PipelinedChannel) -> asyncio.Event:
    """Set as soon as nothing more comes on a channel: it is closed, or the broker has cancelled a
    consumer of it, as it does when somebody deletes the queue."""
    over = asyncio.Event()

    def end(_: object) -> None:
        over.set()

    channel.closed.add_done_callback(end)
    channel.on_consumer_cancel_callbacks.add(end)
    return over


async def until_event(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
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
