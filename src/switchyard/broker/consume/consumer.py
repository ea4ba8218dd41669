"""Strict priority over several queues, with reserved slots.

One `LaneConsumer` serves one kind of worker: its queues, most urgent first, and its slots.

- A slot goes to the most urgent delivery that waits. Lower lanes never use the reserved slots,
  so an urgent job starts at once although every other slot is busy for ten minutes.
- Each queue has a consumer of its own, whose prefetch is the number of slots that its lane may
  use: a message that the broker still holds can be overtaken, one that was fetched can't.
- What can't be started within `patience` is returned to its queue, for another worker, and that
  queue rests until one of its slots is free.
- A lower lane starts nothing while a more urgent queue may hold a message that the broker could
  not send until now: then the broker is asked first. A pause of fixed length would be too short
  for a busy broker and too long for an idle one.
- A consumer that the broker cancelled, a channel that was closed and a connection that was lost
  all end in the same place: the queue's own loop, which opens a channel again, with backoff.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from aiormq.connection import Connection
from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.consume.listening import keep_listening, unless
from switchyard.broker.wire.away import CHANNEL_ERRORS
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import closed
from switchyard.broker.wire.depths import waiting_in
from switchyard.broker.wire.incoming import Incoming
from switchyard.broker.wire.link import Link

ANSWER = 1.0
"""Seconds at most for which lower lanes wait to hear whether a more urgent queue has something."""
ASK_AGAIN = 0.005
"""Seconds until the next question, where the answer was yes and nothing has come."""
DEFECT_PAUSE = 1.0
"""Seconds that a delivery is kept whose handler failed unexpectedly, before it is returned."""
PATIENCE = 1.0
"""Seconds that a fetched delivery may wait for a slot before it is returned."""


@dataclass(slots=True)
class _Queue:
    """One queue's consumer."""

    name: str
    rank: int
    prefetch: int
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    state: Literal["away", "consuming", "resting"] = "away"
    channel: PipelinedChannel | None = None
    running: int = 0
    waiting: int = 0
    """Deliveries that were fetched and not started."""
    holds_until: float = 0.0
    """Lower lanes start nothing before; seconds, on the monotonic clock."""
    questions: int = 0
    """How often the broker may have been left with something that it could not send."""
    inquiry: asyncio.Task[None] | None = None
    """Asks the broker."""

    @property
    def held(self) -> int:
        return self.running + self.waiting

    def rest(self) -> None:
        self.wanted.clear()
        self.resting.set()

    def wake(self) -> None:
        self.resting.clear()
        self.wanted.set()


_Waiting = tuple[int, int, int, Delivery]


class LaneConsumer:
    """Runs a handler on deliveries of several queues, most urgent first.

    `queues` are in order of urgency. `slots` is the number of deliveries handled at once,
    `reserve` how many of them only the first queue may use. `consumer_priority` is the broker's:
    a higher one gets messages first. `handle` settles its delivery.
    """

    def __init__(
        self,
        link: Link,
        queues: Sequence[str],
        handle: Callable[[Delivery], Awaitable[None]],
        log: FilteringBoundLogger,
        *,
        slots: int,
        reserve: int = 0,
        consumer_priority: int = 0,
        patience: float = PATIENCE,
        tag: str = "switchyard",
    ) -> None:
        if not queues:
            raise ValueError("name at least one queue")
        if slots < 1 or not 0 <= reserve < slots:
            raise ValueError(f"reserve must be 0 to {slots - 1} with {slots} slots, not {reserve}")
        self._link = link
        self._handle = handle
        self._log = log
        self._slots = slots
        self._lower_slots = slots - (reserve if len(queues) > 1 else 0)
        self._consumer_priority = consumer_priority
        self._patience = patience
        self._tag = tag
        self._queues = tuple(
            _Queue(name, rank, slots if rank == 0 else self._lower_slots)
            for rank, name in enumerate(queues)
        )
        self._waiting: list[_Waiting] = []
        self._sequence = 0
        self._running: set[asyncio.Task[None]] = set()
        self._hold_timer: asyncio.TimerHandle | None = None
        self._patience_timer: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._paused = False

    # --- life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Consume until `stop` is called. What runs then goes on: see `drain`."""
        if not self._paused and not self._stopping.is_set():
            for queue in self._queues:
                queue.wake()
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(self._serve(queue), name=f"consume {queue.name}")

    def stop(self) -> None:
        """Start nothing more, stop consuming, return what was fetched and not started."""
        self._stopping.set()
        self._return_all()
        for queue in self._queues:
            queue.rest()

    async def drain(self, grace: float) -> bool:
        """Wait for the running handlers, at most `grace` seconds. True when all have ended."""
        running = tuple(self._running)
        if running:
            await asyncio.wait(running, timeout=grace)
        return all(task.done() for task in running)

    async def abort(self, grace: float) -> bool:
        """Cancel the running handlers, whatever they are at, and wait as `drain` does.

        Their deliveries are theirs to return; what they leave goes back with the connection.
        """
        for task in self._running:
            task.cancel()
        return await self.drain(grace)

    def pause(self) -> None:
        """Take no more deliveries until `resume`; what was fetched and not started goes back."""
        if not self._paused:
            self._paused = True
            self._return_all()
            for queue in self._queues:
                queue.rest()

    def resume(self) -> None:
        if self._paused and not self._stopping.is_set():
            self._paused = False
            for queue in self._queues:
                queue.wake()

    # --- what can be seen -------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Deliveries that were fetched and not started."""
        return len(self._waiting)

    @property
    def states(self) -> dict[str, str]:
        """Each queue's state: `away` (no consumer), `consuming` or `resting`."""
        return {queue.name: queue.state for queue in self._queues}

    # --- one queue --------------------------------------------------------------------------

    async def _serve(self, queue: _Queue) -> None:
        await keep_listening(
            self._link,
            partial(self._listen, queue),
            self._log,
            "can't consume",
            stopping=self._stopping,
            queue=queue.name,
        )

    async def _listen(
        self, queue: _Queue, connection: Connection, hears: Callable[[], None]
    ) -> None:
        channel: PipelinedChannel | None = None
        self._hold_lower(queue)
        try:
            channel = queue.channel = await open_channel(connection, confirms=False)
            await channel.basic_qos(prefetch_count=queue.prefetch)
            cancelled = asyncio.Event()
            channel.on_consumer_cancel_callbacks.add(partial(_set, cancelled))
            while await self._consume(queue, channel, cancelled):
                pass
        finally:
            if queue.state != "away":
                hears()
            queue.state = "away"
            queue.channel = None
            if channel is not None:
                self._forget(channel)
            self._let_lower_start(queue)
            if channel is not None and not self._stopping.is_set():
                await closed(channel)

    async def _consume(
        self, queue: _Queue, channel: PipelinedChannel, cancelled: asyncio.Event
    ) -> bool:
        """Consume until the queue has to rest (True), or the consumer is gone or `stop` was
        called (False)."""
        if not queue.wanted.is_set():
            queue.state = "resting"
            await self._first_of(queue.wanted.wait(), channel.closed)
            if channel.closed.done() or self._stopping.is_set():
                return False
        self._sequence += 1
        tag = f"{self._tag}.{queue.name}.{self._sequence}"
        await channel.consume(
            queue.name,
            tag,
            lambda message: self._received(queue, channel, message),
            priority=self._consumer_priority,
        )
        if queue.state == "away":
            self._log.info("consuming", queue=queue.name, prefetch=queue.prefetch)
        queue.state = "consuming"
        self._fill()
        await self._first_of(queue.resting.wait(), cancelled.wait(), channel.closed)
        if cancelled.is_set():
            self._log.warning("the broker cancelled the consumer", queue=queue.name)
            return False
        if channel.closed.done():
            self._log.warning("the channel was closed", queue=queue.name)
            return False
        await channel.cancel(tag)
        return not self._stopping.is_set()

    def _received(self, queue: _Queue, channel: PipelinedChannel, message: Incoming) -> None:
        delivery = Delivery.of(message, queue.name, channel)
        if self._stopping.is_set() or self._paused:
            delivery.requeue()
            return
        self._sequence += 1
        heapq.heappush(self._waiting, (queue.rank, -delivery.priority, self._sequence, delivery))
        queue.waiting += 1
        self._fill()

    # --- slots ------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give free slots to what waits, most urgent first; return what waits too long."""
        if not self._paused and not self._stopping.is_set():
            for queue in self._queues:
                if not queue.wanted.is_set() and self._has_room(queue):
                    queue.wake()
                    self._hold_lower(queue)
        while self._waiting and self._may_start(self._queues[self._waiting[0][0]]):
            rank, _, _, delivery = heapq.heappop(self._waiting)
            self._queues[rank].waiting -= 1
            if not delivery.is_lost:
                self._start(self._queues[rank], delivery)
        if self._waiting:
            self._keep_lower_lanes_bounded()
        if self._waiting:
            self._watch_patience()

    def _has_room(self, queue: _Queue) -> bool:
        """Whether a slot is free for that queue, beyond those that what waits will take."""
        ahead = sum(each.waiting for each in self._queues[: queue.rank + 1])
        if len(self._running) + ahead >= self._slots:
            return False
        return queue.rank == 0 or self._held_lower() < self._lower_slots

    def _may_start(self, queue: _Queue) -> bool:
        if len(self._running) >= self._slots:
            return False
        if queue.rank == 0:
            return True
        if sum(each.running for each in self._queues[1:]) >= self._lower_slots:
            return False
        moment = time.monotonic()
        holding = [each for each in self._queues[: queue.rank] if each.holds_until > moment]
        for each in holding:
            self._inquire(each)
        if holding and self._hold_timer is None:
            longest = max(each.holds_until for each in holding) - moment
            self._hold_timer = asyncio.get_running_loop().call_later(longest, self._held_long)
        return not holding

    def _start(self, queue: _Queue, delivery: Delivery) -> None:
        queue.running += 1
        task = asyncio.get_running_loop().create_task(self._run(queue, delivery))
        self._running.add(task)

    async def _run(self, queue: _Queue, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        except Exception:
            # A defect of the handler must cost neither the slot for good nor the delivery; the
            # pause keeps it from going round and round as fast as the broker can send.
            self._log.exception("the handler failed", queue=delivery.queue)
            await unless(self._stopping, asyncio.sleep(DEFECT_PAUSE))
            delivery.requeue()
        finally:
            if queue.held >= queue.prefetch:
                self._hold_lower(queue)  # until now the broker could not send more
            queue.running -= 1
            task = asyncio.current_task()
            if task is not None:
                self._running.discard(task)
            self._fill()

    # --- strictness -------------------------------------------------------------------------

    def _hold_lower(self, queue: _Queue) -> None:
        """Start nothing of the lanes below until the broker has said that `queue` is empty."""
        queue.questions += 1
        queue.holds_until = time.monotonic() + ANSWER

    def _let_lower_start(self, queue: _Queue) -> None:
        queue.holds_until = 0.0
        self._fill()

    def _held_long(self) -> None:
        self._hold_timer = None
        self._fill()

    def _inquire(self, queue: _Queue) -> None:
        if queue.inquiry is None and queue.state == "consuming" and queue.channel is not None:
            queue.inquiry = asyncio.create_task(self._find_out(queue, queue.channel))

    async def _find_out(self, queue: _Queue, channel: PipelinedChannel) -> None:
        """Ask the broker until `queue` is empty, or what it has can't come here."""
        try:
            while time.monotonic() < queue.holds_until:
                asked = queue.questions
                # Twice: what the first answer has left on its way is here before the second.
                if await _ready(channel, queue.name) or await _ready(channel, queue.name):
                    await asyncio.sleep(ASK_AGAIN)
                elif asked == queue.questions:
                    break
        except CHANNEL_ERRORS as error:
            self._log.warning("can't ask", queue=queue.name, error=str(error))
        finally:
            queue.inquiry = None
            self._let_lower_start(queue)

    # --- returning --------------------------------------------------------------------------

    def _keep_lower_lanes_bounded(self) -> None:
        """Never hold more lower-lane deliveries than there are slots that could run them."""
        for _ in range(self._held_lower() - self._lower_slots):
            self._return(max(self._waiting))

    def _held_lower(self) -> int:
        return sum(each.held for each in self._queues[1:])

    def _watch_patience(self) -> None:
        if self._patience_timer is None:
            oldest = min(entry[3].received_at for entry in self._waiting)
            delay = max(oldest + self._patience - time.monotonic(), 0)
            self._patience_timer = asyncio.get_running_loop().call_later(delay, self._impatient)

    def _impatient(self) -> None:
        self._patience_timer = None
        limit = time.monotonic() - self._patience
        for entry in [entry for entry in self._waiting if entry[3].received_at <= limit]:
            self._return(entry)
        self._fill()

    def _return(self, entry: _Waiting) -> None:
        self._waiting.remove(entry)
        heapq.heapify(self._waiting)
        queue = self._queues[entry[0]]
        queue.waiting -= 1
        entry[3].requeue()
        queue.rest()  # else the broker would send it straight back

    def _return_all(self) -> None:
        for *_, delivery in self._waiting:
            delivery.requeue()
        self._waiting.clear()
        for queue in self._queues:
            queue.waiting = 0

    def _forget(self, channel: PipelinedChannel) -> None:
        """Drop deliveries of a channel that is gone: the broker has taken them back."""
        self._waiting = [entry for entry in self._waiting if entry[3]._channel is not channel]
        heapq.heapify(self._waiting)
        for queue in self._queues:
            queue.waiting = sum(1 for entry in self._waiting if entry[0] == queue.rank)

    # --- waiting ----------------------------------------------------------------------------

    async def _first_of(self, *events: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
        """Wait for the first of these, or for `stop`. Futures are left alone."""
        own = [asyncio.create_task(event) for event in events if asyncio.iscoroutine(event)]
        own.append(asyncio.create_task(self._stopping.wait()))
        given = [event for event in events if isinstance(event, asyncio.Future)]
        try:
            await asyncio.wait((*own, *given), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in own:
                task.cancel()


async def _ready(channel: PipelinedChannel, queue: str) -> int:
    """Messages that the broker has not sent to anybody."""
    # Without a limit, which would end the channel, and give away what runs.
    return (await waiting_in(channel, queue, limit=None)).ready


def _set(event: asyncio.Event, _: Any) -> None:
    event.set()
