"""Strict priority over several queues, with reserved slots.

One `LaneConsumer` serves one kind of worker: its queues, most urgent first. Which delivery gets
a slot, waits for one or goes back is decided in `slots`.

- Each queue has a consumer of its own, whose prefetch is the number of slots that its lane may
  use: a message that the broker still holds can be overtaken, one that was fetched can't.
- A consumer that the broker cancelled, a channel that was closed and a connection that was lost
  all end in the same place: the queue's own loop, which opens a channel again, with backoff.
- A consumer that the broker has lost without telling is found by `watchdog`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from aiormq.connection import Connection
from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.consume.listening import keep_listening
from switchyard.broker.consume.slots import MAX_SLOT_WAIT, LaneQueue, Slots
from switchyard.broker.consume.watchdog import WATCH_SECONDS, watch
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import close_quietly
from switchyard.broker.wire.reconnector import Reconnector


class LaneConsumer:
    """Runs a handler on the deliveries of one worker kind's queues, one queue for each lane.

    `queues` are in order of urgency. `slots` is the number of deliveries handled at once,
    `reserve` how many of them only the first queue may use. `consumer_priority` is the broker's:
    a higher one gets messages first. `handle` settles its delivery.
    """

    def __init__(
        self,
        reconnector: Reconnector,
        queues: Sequence[str],
        handle: Callable[[Delivery], Awaitable[None]],
        log: FilteringBoundLogger,
        *,
        slots: int,
        reserve: int = 0,
        consumer_priority: int = 0,
        max_wait: float = MAX_SLOT_WAIT,
        watch_seconds: float = WATCH_SECONDS,
        tag: str = "switchyard",
    ) -> None:
        self._reconnector = reconnector
        self._watch_seconds = watch_seconds
        self._log = log
        self._consumer_priority = consumer_priority
        self._tag = tag
        self._tags = 0
        self._stopping = asyncio.Event()
        self._slots = Slots(
            queues,
            handle,
            log,
            self._stopping,
            slots=slots,
            reserve=reserve,
            max_wait=max_wait,
        )

    # --- start and stop ---------------------------------------------------------------------

    async def run(self) -> None:
        """Consume until `stop` is called. Handlers that run then go on: see `drain`."""
        if self._slots.is_open:  # else it was paused before it began: `resume` opens them
            self._slots.open()
        async with asyncio.TaskGroup() as group:
            for queue in self._slots.queues:
                group.create_task(self._serve(queue), name=f"consume {queue.name}")
                watching = watch(queue, self._stopping, self._log, every=self._watch_seconds)
                group.create_task(watching, name=f"watch {queue.name}")

    def stop(self) -> None:
        """Start nothing more, stop consuming, requeue deliveries that were fetched and not
        started."""
        self._stopping.set()
        self._slots.close()

    async def drain(self, grace: float | None) -> bool:
        """Wait for the running handlers, at most `grace` seconds; None: for as long as they take.
        True when all have ended."""
        running = tuple(self._slots.running)
        if running:
            await asyncio.wait(running, timeout=grace)
        return all(task.done() for task in running)

    async def abort(self, grace: float) -> bool:
        """Cancel the running handlers and wait as `drain` does.

        Each handler settles its own delivery; one that does not is requeued when the connection
        ends.
        """
        for task in self._slots.running:
            task.cancel()
        return await self.drain(grace)

    def pause(self) -> None:
        """Take no more deliveries until `resume`; requeue those that were fetched and not
        started."""
        if self._slots.is_open:
            self._slots.close()

    def resume(self) -> None:
        """Take deliveries again after `pause`; does nothing after `stop`."""
        if not self._slots.is_open and not self._stopping.is_set():
            self._slots.open()

    # --- status -----------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._slots.running)

    @property
    def waiting(self) -> int:
        """Deliveries that were fetched and not started."""
        return len(self._slots.waiting)

    @property
    def states(self) -> dict[str, str]:
        """Each queue's state: `away` (no consumer), `consuming`, or `resting` (consumer cancelled
        while its slots are in use)."""
        return {queue.name: queue.state for queue in self._slots.queues}

    # --- one queue --------------------------------------------------------------------------

    async def _serve(self, queue: LaneQueue) -> None:
        await keep_listening(
            self._reconnector,
            partial(self._listen, queue),
            self._log,
            "queue not consumed",
            stopping=self._stopping,
            queue=queue.name,
        )

    async def _listen(
        self, queue: LaneQueue, connection: Connection, reset_backoff: Callable[[], None]
    ) -> None:
        channel: PipelinedChannel | None = None
        self._slots.block_lower_lanes(queue)
        try:
            channel = queue.channel = await open_channel(connection, confirms=False)
            await channel.basic_qos(prefetch_count=queue.prefetch)
            cancelled = asyncio.Event()
            channel.on_consumer_cancel_callbacks.add(partial(_set, cancelled))
            while await self._consume(queue, channel, cancelled):
                pass
        finally:
            if queue.state != "away":
                reset_backoff()
            queue.state = "away"
            queue.channel = None
            if channel is not None:
                self._slots.forget(channel)
            self._slots.unblock_lower_lanes(queue)
            if channel is not None and not self._stopping.is_set():
                await close_quietly(channel)

    async def _consume(
        self, queue: LaneQueue, channel: PipelinedChannel, cancelled: asyncio.Event
    ) -> bool:
        """Consume until the queue has to rest (True), or the consumer is gone or `stop` was
        called (False)."""
        if not queue.wanted.is_set():
            queue.state = "resting"
            await self._wait_for_first(queue.wanted.wait(), channel.closed)
            if channel.closed.done() or self._stopping.is_set():
                return False
        queue.lost.clear()
        self._tags += 1
        tag = f"{self._tag}.{queue.name}.{self._tags}"
        await channel.consume(
            queue.name,
            tag,
            partial(self._slots.accept, queue, channel),
            priority=self._consumer_priority,
        )
        if queue.state == "away":
            self._log.info("consumer started", queue=queue.name, prefetch=queue.prefetch)
        queue.state = "consuming"
        self._slots.fill()
        await self._wait_for_first(
            queue.resting.wait(), queue.lost.wait(), cancelled.wait(), channel.closed
        )
        if cancelled.is_set():
            self._log.warning("consumer cancelled by the broker", queue=queue.name)
            return False
        if channel.closed.done():
            reason = channel.closed.result()
            self._log.warning("channel closed", queue=queue.name, reason=reason)
            return False
        await channel.cancel(tag)
        return not self._stopping.is_set()

    # --- waiting ----------------------------------------------------------------------------

    async def _wait_for_first(
        self, *events: Coroutine[Any, Any, Any] | asyncio.Future[Any]
    ) -> None:
        """Wait for the first of these, or for `stop`. Futures are not cancelled."""
        tasks = [asyncio.create_task(event) for event in events if asyncio.iscoroutine(event)]
        tasks.append(asyncio.create_task(self._stopping.wait()))
        futures = [event for event in events if isinstance(event, asyncio.Future)]
        try:
            await asyncio.wait((*tasks, *futures), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _set(event: asyncio.Event, _: Any) -> None:
    event.set()
