"""Slots: decide which delivery runs, which waits, and which goes back to its queue.

- A slot goes to the most urgent delivery that waits. Lower lanes never use the reserved slots,
  so an urgent job starts at once although every other slot is busy for ten minutes.
- A delivery that can't be started within `max_wait` is returned, for another worker, and its
  queue rests until one of its slots is free.
- A lower lane starts nothing while a more urgent queue may hold a message that the broker could
  not send until now: then the broker is queried first. A pause of fixed length would be too short
  for a busy broker and too long for an idle one.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.consume.listening import run_until_event
from switchyard.broker.wire.channel import PipelinedChannel
from switchyard.broker.wire.depths import read_queue_size
from switchyard.broker.wire.failures import CHANNEL_ERRORS
from switchyard.broker.wire.incoming import Incoming
from switchyard.broker.wording import writable

ANSWER_TIMEOUT = 1.0
"""Seconds at most for which lower lanes wait to learn whether a more urgent queue has messages."""
REQUERY_INTERVAL = 0.005
"""Seconds until the next query, where the queue had messages and none has arrived."""
DEFECT_PAUSE = 1.0
"""Seconds that a delivery is kept whose handler failed unexpectedly, before it is returned."""
TRACEBACK_LIMIT = 12_000
"""Characters of its traceback in the log: the end, where the error is."""
MAX_SLOT_WAIT = 1.0
"""Seconds that a fetched delivery may wait for a slot before it is returned."""


@dataclass(slots=True)
class LaneQueue:
    """One queue, with the deliveries that this worker holds of it."""

    name: str
    rank: int
    prefetch: int
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the queue should have a consumer; `resting` is set while it should have none."""
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    state: Literal["away", "consuming", "resting"] = "away"
    """`away`: no consumer yet, or it was lost. `resting`: cancelled until a slot is free."""
    channel: PipelinedChannel | None = None
    running: int = 0
    waiting: int = 0
    """Deliveries that were fetched and not started."""
    holds_until: float = 0.0
    """Seconds, on the monotonic clock: lower lanes start nothing before this time
    (`block_lower_lanes`)."""
    blocks: int = 0
    """Number of calls of `block_lower_lanes`. A query during which it rises has an outdated
    answer."""
    inquiry: asyncio.Task[None] | None = None
    """The task that queries the broker, while there is one."""
    arrived: int = 0
    """Deliveries so far, of all its consumers."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the broker has lost the consumer (`watchdog`): start another one."""

    @property
    def held(self) -> int:
        """Deliveries that run or wait here."""
        return self.running + self.waiting

    def rest(self) -> None:
        """Let the queue have no consumer until `wake`."""
        self.wanted.clear()
        self.resting.set()

    def wake(self) -> None:
        """Let the queue have a consumer."""
        self.resting.clear()
        self.wanted.set()


_Waiting = tuple[int, int, int, Delivery]


class Slots:
    """The slots of one kind of worker, and its queues in order of urgency.

    Raises ValueError for numbers of slots that make no sense.
    """

    def __init__(
        self,
        queues: Sequence[str],
        handle: Callable[[Delivery], Awaitable[None]],
        log: FilteringBoundLogger,
        stopping: asyncio.Event,
        *,
        slots: int,
        reserve: int,
        max_wait: float,
    ) -> None:
        if not queues:
            raise ValueError("name at least one queue")
        if slots < 1 or not 0 <= reserve < slots:
            raise ValueError(f"reserve must be 0 to {slots - 1} with {slots} slots, not {reserve}")
        self._handle = handle
        self._log = log
        self._stopping = stopping
        self._slots = slots
        self._lower_slots = slots - (reserve if len(queues) > 1 else 0)
        self._max_wait = max_wait
        self.queues = tuple(
            LaneQueue(name, rank, slots if rank == 0 else self._lower_slots)
            for rank, name in enumerate(queues)
        )
        self.running: set[asyncio.Task[None]] = set()
        """Handlers at work, one for each slot in use."""
        self.waiting: list[_Waiting] = []
        """A heap of the deliveries that were fetched and not started, the most urgent first."""
        self.is_open = True
        """Whether deliveries are taken at all."""
        self._sequence = 0
        self._hold_timer: asyncio.TimerHandle | None = None
        self._wait_timer: asyncio.TimerHandle | None = None

    # --- open and closed --------------------------------------------------------------------

    def open(self) -> None:
        """Take deliveries from every queue."""
        self.is_open = True
        for queue in self.queues:
            queue.wake()

    def close(self) -> None:
        """Start nothing more, and requeue the deliveries that were fetched and not started."""
        self.is_open = False
        for *_, delivery in self.waiting:
            delivery.requeue()
        self.waiting.clear()
        for queue in self.queues:
            queue.waiting = 0
            queue.rest()

    # --- deliveries -------------------------------------------------------------------------

    def accept(self, queue: LaneQueue, channel: PipelinedChannel, message: Incoming) -> None:
        """Give a message a slot if one is free for its queue; else let it wait, or return it."""
        delivery = Delivery.from_incoming(message, queue.name, channel)
        queue.arrived += 1
        if not self.is_open:
            delivery.requeue()
            return
        self._sequence += 1
        heapq.heappush(self.waiting, (queue.rank, -delivery.priority, self._sequence, delivery))
        queue.waiting += 1
        self.fill()

    # --- slots ------------------------------------------------------------------------------

    def fill(self) -> None:
        """Give free slots to waiting deliveries, the most urgent first; requeue lower ones beyond
        their slots."""
        if self.is_open:
            for queue in self.queues:
                if not queue.wanted.is_set() and self._has_room(queue):
                    queue.wake()
                    self.block_lower_lanes(queue)
        while self.waiting and self._may_start(self.queues[self.waiting[0][0]]):
            rank, _, _, delivery = heapq.heappop(self.waiting)
            self.queues[rank].waiting -= 1
            if not delivery.is_lost:
                self._start(self.queues[rank], delivery)
        if self.waiting:
            self._keep_lower_lanes_bounded()
        if self.waiting:
            self._start_wait_timer()

    def _has_room(self, queue: LaneQueue) -> bool:
        """Tell whether a slot is free for that queue after all waiting deliveries as urgent or more
        have theirs."""
        ahead = sum(each.waiting for each in self.queues[: queue.rank + 1])
        if len(self.running) + ahead >= self._slots:
            return False
        return queue.rank == 0 or self._held_lower() < self._lower_slots

    def _may_start(self, queue: LaneQueue) -> bool:
        if len(self.running) >= self._slots:
            return False
        if queue.rank == 0:
            return True
        if sum(each.running for each in self.queues[1:]) >= self._lower_slots:
            return False
        moment = time.monotonic()
        holding = [each for each in self.queues[: queue.rank] if each.holds_until > moment]
        for each in holding:
            self._start_inquiry(each)
        if holding and self._hold_timer is None:
            longest = max(each.holds_until for each in holding) - moment
            self._hold_timer = asyncio.get_running_loop().call_later(longest, self._on_hold_timeout)
        return not holding

    def _start(self, queue: LaneQueue, delivery: Delivery) -> None:
        queue.running += 1
        task = asyncio.get_running_loop().create_task(self._run(queue, delivery))
        self.running.add(task)

    async def _run(self, queue: LaneQueue, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        except BaseException as error:
            own_task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError | GeneratorExit) and (
                own_task is None or own_task.cancelling()
            ):
                raise
            # A defect of the handler must lose neither the slot nor the delivery, nor end
            # the process (as KeyboardInterrupt would). The pause keeps the broker from delivering
            # the message again as fast as it can.
            self._log.error("handler failed", queue=delivery.queue, traceback=_traceback_of(error))
            await run_until_event(self._stopping, asyncio.sleep(DEFECT_PAUSE))
            delivery.requeue()
        finally:
            if queue.held >= queue.prefetch:
                self.block_lower_lanes(queue)  # until now the broker could not send more
            queue.running -= 1
            task = asyncio.current_task()
            if task is not None:
                self.running.discard(task)
            self.fill()

    # --- strictness -------------------------------------------------------------------------

    def block_lower_lanes(self, queue: LaneQueue) -> None:
        """Start no job of the lanes below until the broker reports that `queue` is empty,
        for ANSWER_TIMEOUT at most."""
        queue.blocks += 1
        queue.holds_until = time.monotonic() + ANSWER_TIMEOUT

    def unblock_lower_lanes(self, queue: LaneQueue) -> None:
        """Let the lanes below start jobs again: `queue` is empty, or the broker did not say so in
        time."""
        queue.holds_until = 0.0
        self.fill()

    def _on_hold_timeout(self) -> None:
        self._hold_timer = None
        self.fill()

    def _start_inquiry(self, queue: LaneQueue) -> None:
        if queue.inquiry is None and queue.state == "consuming" and queue.channel is not None:
            queue.inquiry = asyncio.create_task(self._query_urgent_queue(queue, queue.channel))

    async def _query_urgent_queue(self, queue: LaneQueue, channel: PipelinedChannel) -> None:
        """Query the broker until `queue` is empty or ANSWER_TIMEOUT is over; then unblock the lanes
        below."""
        try:
            while time.monotonic() < queue.holds_until:
                blocks = queue.blocks
                # Twice: a message that was on its way at the first answer arrives before the
                # second.
                if await _count_ready(channel, queue.name) or await _count_ready(
                    channel, queue.name
                ):
                    await asyncio.sleep(REQUERY_INTERVAL)
                elif blocks == queue.blocks:
                    break
        except CHANNEL_ERRORS as error:
            self._log.warning("urgent queue not queried", queue=queue.name, error=str(error))
        finally:
            queue.inquiry = None
            self.unblock_lower_lanes(queue)

    # --- returning --------------------------------------------------------------------------

    def _keep_lower_lanes_bounded(self) -> None:
        """Never hold more lower-lane deliveries than there are slots that could run them."""
        for _ in range(self._held_lower() - self._lower_slots):
            self._return(max(self.waiting))

    def _held_lower(self) -> int:
        return sum(each.held for each in self.queues[1:])

    def _start_wait_timer(self) -> None:
        if self._wait_timer is None:
            oldest = min(entry[3].received_at for entry in self.waiting)
            delay = max(oldest + self._max_wait - time.monotonic(), 0)
            self._wait_timer = asyncio.get_running_loop().call_later(delay, self._on_wait_timeout)

    def _on_wait_timeout(self) -> None:
        self._wait_timer = None
        limit = time.monotonic() - self._max_wait
        for entry in [entry for entry in self.waiting if entry[3].received_at <= limit]:
            self._return(entry)
        self.fill()

    def _return(self, entry: _Waiting) -> None:
        self.waiting.remove(entry)
        heapq.heapify(self.waiting)
        queue = self.queues[entry[0]]
        queue.waiting -= 1
        entry[3].requeue()
        queue.rest()  # else the broker would send it straight back

    def forget(self, channel: PipelinedChannel) -> None:
        """Drop deliveries of a channel that is gone: the broker has taken them back."""
        self.waiting = [entry for entry in self.waiting if not entry[3].arrived_on(channel)]
        heapq.heapify(self.waiting)
        for queue in self.queues:
            queue.waiting = sum(1 for entry in self.waiting if entry[0] == queue.rank)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback as text without the error's own, which may raise."""
    text = "".join((*traceback.format_tb(error.__traceback__), type(error).__name__))
    return writable(text, TRACEBACK_LIMIT, keep_end=True)


async def _count_ready(channel: PipelinedChannel, queue: str) -> int:
    """Return the number of messages that the broker has not sent to any consumer."""
    # No time limit: reaching it would close the channel, and the running jobs would be redelivered.
    return (await read_queue_size(channel, queue, limit=None)).ready
