"""Reading `jobs.dead` and `jobs.dead.log` message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiormq import Connection

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.dead.dead_letter_headers import (
    DeadLetterInfo,
    examine,
    had_own_expiry,
    is_certified,
    letter_id,
    unreadable_properties,
)
from switchyard.broker.errors import BrokerUnavailable
from switchyard.broker.lanes import DEAD_QUEUE, JOBS_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.settings import Profile
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.depths import read_queue_size
from switchyard.broker.wire.failures import raising_broker_unavailable
from switchyard.broker.wire.incoming import Incoming

BATCH_SIZE = 1_000
"""Letters that a scan of a classic queue holds on one channel. To acknowledge one of many, the
broker goes through all that the channel holds before it: with 100,000 that takes 20 ms for each.
And a small batch is a small burst for whoever else needs the broker."""
MAX_CHANNELS = 1_000
"""Half of what a broker allows on a connection; the batches of a longer queue are larger."""
QUORUM_BATCH_SIZE = 65_535
"""Letters that one consumer of a quorum queue holds at most: the largest prefetch count of AMQP.
All consumers are on one channel: when it is cut off, its letters come back in their order, while
those of several channels would come back in any order. In a quorum queue, one channel is no
slower."""
IDLE_SECONDS = 1.0
"""Seconds without a letter after which a scan asks how many wait. It ends where none do: the rest
is held by another scan."""
YIELD_EVERY = 100
"""Letters after which the event loop is let run."""
RETURN_POLLS, RETURN_POLL_INTERVAL = 40, 0.05
"""How often, and how many seconds apart, a scan looks whether the letters that it gave back are in
the queue."""
IDLE_LIMIT = 30
"""Times of IDLE_SECONDS in a row, without a letter though some wait, after which a scan ends."""


@dataclass(frozen=True, slots=True)
class QueuedDeadLetter:
    """A message in `jobs.dead`."""

    delivery: Delivery
    info: DeadLetterInfo
    message: JobMessage | None
    """None when it is no job message: see `broker.dead.dead_letter_headers.job_in`."""
    duplicates: list[QueuedDeadLetter] = field(default_factory=list, compare=False, repr=False)
    """Further letters of the same death; `ack` acknowledges them with this one."""

    @classmethod
    def from_delivery(cls, delivery: Delivery) -> QueuedDeadLetter:
        if delivery.unreadable:
            return cls(delivery, unreadable_properties(delivery), None)
        # What the alternate exchange has brought here was published by anybody, headers and all.
        headers = {} if delivery.exchange == JOBS_EXCHANGE else delivery.headers
        return cls(delivery, *examine(headers, delivery.routing_key, delivery.body))

    @property
    def id(self) -> str:
        """The job's id; `raw-…` for a body that is no job message."""
        return letter_id(self.message.job_id if self.message else None, self.delivery.body)

    @property
    def redrives(self) -> int:
        return self.message.metadata.redrives if self.message else 0

    @property
    def is_ours(self) -> bool:
        """Whether this system has written it, and not the broker: only users of this system may
        publish to `jobs.dlx`, so its headers can be trusted."""
        return is_certified(self.delivery.headers) and self.delivery.exchange != JOBS_EXCHANGE

    @property
    def has_own_expiry(self) -> bool:
        """Whether its publisher had given it a time limit for the broker."""
        return had_own_expiry(self.delivery.headers)

    @property
    def death(self) -> tuple[str, int, int]:
        """The job's id, redrives and attempts. Letters that agree in them are copies of one letter.

        A publish that was cut off before its confirm is repeated, and the broker may have had the
        first one, too. Messages that are no job and have equal bodies are one as well: nothing
        tells them apart, and the index has one id for them.
        """
        return (self.id, *(self.message.generation if self.message else (0, 0)))

    @property
    def body(self) -> bytes:
        return self.delivery.body

    @property
    def is_settled(self) -> bool:
        return self.delivery.is_settled

    @property
    def left_behind(self) -> int:
        """Copies that stay on the broker after `ack`: none, as `ack` removes the message itself."""
        return 0

    def ack(self) -> bool:
        """Remove the letter and its duplicates from the queue. False when the channel is gone: the
        letter is back in its place."""
        for letter in self.duplicates:
            letter.ack()
        return self.delivery.ack()


class _ScanBatch:
    """The letters of one consumer: a part of the scan.

    All letters of a batch are fetched before the first is handed out. Otherwise the caller could
    acknowledge one while others are still in the queue: a quorum queue then sends a further letter,
    which does not return to its old place later (measured on 4.3.6)."""

    def __init__(self, channel: PipelinedChannel, queue: str, tag: str, size: int) -> None:
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self.size = size
        self._arrived = asyncio.Event()
        self._own: int | None = None
        """How many of the deliveries are the batch's; the ones after them came during `flush`. None
        until the batch is complete."""
        self.deliveries: list[Delivery] = []

    async def fetch(self) -> None:
        """Start the batch's consumer; its letters arrive in `deliveries`."""
        await self._channel.basic_qos(prefetch_count=self.size)
        await self._channel.consume(self._queue, self._tag, self._put)

    def _put(self, message: Incoming) -> None:
        self.deliveries.append(Delivery.from_incoming(message, self._queue, self._channel))
        self._arrived.set()

    async def complete(self) -> None:
        """Wait until the batch has all its letters, or the broker has no more to send."""
        idle = 0
        while len(self.deliveries) < self.size:
            self._arrived.clear()
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._arrived.wait()
                idle = 0
                continue
            except TimeoutError:
                idle += 1
            if self._channel.closed.done():
                raise BrokerUnavailable(
                    "the connection was lost during the scan; every letter that was not "
                    "handled is back in its place",
                    maybe_accepted=False,
                )
            size = await read_queue_size(self._channel, self._queue)
            if not size.ready or idle >= IDLE_LIMIT:
                break
        await self._channel.cancel(self._tag)
        self._own = len(self.deliveries)

    async def flush(self) -> None:
        """Wait until the queue has seen all acknowledgements.

        A channel is served in order: the answer to any call comes after what was sent before. For
        a quorum queue that is not enough. Its channel holds back acknowledgements while many are
        under way, and forgets them when it is closed (measured on 4.3.6). Cancelling a consumer
        waits for those under way; the call after it is served after those that were held back.
        """
        if self._channel.closed.done():
            return
        if self._own is None:  # `complete` was never called
            await self._channel.cancel(self._tag)
            self._own = len(self.deliveries)
        if not any(each.is_settled for each in self.deliveries):
            return
        await asyncio.sleep(0)
        await self._channel.basic_qos(prefetch_count=1)
        await self._channel.consume(self._queue, self._tag, self._put)
        await self._channel.cancel(self._tag)
        await self._channel.queue_declare(self._queue, passive=True)

    @property
    def is_lost(self) -> bool:
        """Whether the channel is gone: its last acknowledgements may not have reached the
        broker."""
        return self._channel.closed.done()

    def give_back(self) -> int:
        """Requeue the batch's letters that were not acknowledged, in order; return their number."""
        return self._requeue(self.deliveries[: self._own])

    def give_back_newer(self) -> int:
        """Requeue the letters that came during `flush`, which are newer than those of all batches;
        return their number."""
        return 0 if self._own is None else self._requeue(self.deliveries[self._own :])

    def _requeue(self, deliveries: Sequence[Delivery]) -> int:
        left = [each for each in deliveries if not each.is_settled]
        if left and not left[-1].requeue_all_before():
            return 0
        return len(left)


class Scan:
    """Letters of one queue, oldest first, each held until it is acknowledged or the scan ends.

    A letter that was not acknowledged is then back in its place: a scan does not change the order.
    """

    def __init__(
        self, connection: Connection, channel: PipelinedChannel, queue: str, profile: Profile
    ) -> None:
        self._connection = connection
        self._profile = profile
        self._channel = channel
        self._queue = queue
        self._batches: list[_ScanBatch] = []
        self.total = 0
        """Messages that waited in the queue when the scan began."""
        self.is_alone = False
        """Whether nobody else had a consumer then, which could hold letters."""
        self.is_settled = False
        """Whether the broker has seen every acknowledgement: known once the scan has ended."""

    async def start(self) -> None:
        """Look how many letters wait, and whether others consume them."""
        size = await read_queue_size(self._channel, self._queue)
        self.total, self.is_alone = size.ready, size.consumers == 0

    async def letters(self) -> AsyncIterator[QueuedDeadLetter]:
        """Yield the letters that waited when the scan began. Raises BrokerUnavailable when the
        connection is lost."""
        left = self.total
        next_batch = await self._fetch(left)
        while next_batch is not None:
            batch = next_batch
            await batch.complete()
            left -= len(batch.deliveries)
            # The next batch is on its way while this one is worked.
            next_batch = await self._fetch(left) if len(batch.deliveries) == batch.size else None
            for number, delivery in enumerate(batch.deliveries):
                if number % YIELD_EVERY == 0:
                    await asyncio.sleep(0)  # others have their turn, too
                yield QueuedDeadLetter.from_delivery(delivery)

    async def _fetch(self, left: int) -> _ScanBatch | None:
        if left <= 0:
            return None
        if self._profile == "quorum":
            channel, max_size = self._channel, QUORUM_BATCH_SIZE
        else:
            channel = await open_channel(self._connection, confirms=False)
            max_size = max(BATCH_SIZE, self.total // MAX_CHANNELS + 1)
        tag = f"scan.{len(self._batches):06}"
        batch = _ScanBatch(channel, self._queue, tag, min(left, max_size))
        self._batches.append(batch)
        await batch.fetch()
        return batch

    async def depth(self, queue: str) -> int:
        """Return the number of messages that wait in a queue, this one or another. Raises aiormq's
        error when there is no such queue, which ends the scan."""
        return (await read_queue_size(self._channel, queue)).ready

    async def settle(self) -> None:
        """Requeue all letters that were not acknowledged, the oldest first."""
        for batch in self._batches:
            await batch.flush()
        for give_back in (_ScanBatch.give_back, _ScanBatch.give_back_newer):
            for batch in self._batches:
                waiting = await self._count_ready()
                number = give_back(batch)
                if number and len(self._batches) > 1:
                    await self._wait_until_ready(waiting + number)
        self.is_settled = not any(batch.is_lost for batch in self._batches)

    async def _wait_until_ready(self, waiting: int) -> None:
        """Wait until so many letters wait in the queue: what another channel returns must come
        behind them."""
        for _ in range(RETURN_POLLS):
            if await self._count_ready() >= waiting:
                return
            await asyncio.sleep(RETURN_POLL_INTERVAL)

    async def _count_ready(self) -> int:
        # Without a time limit: the broker first handles all the returned letters, perhaps many.
        return (await read_queue_size(self._channel, self._queue, limit=None)).ready


@asynccontextmanager
async def scanning(
    url: str, queue: str = DEAD_QUEUE, *, profile: Profile = "quorum"
) -> AsyncIterator[Scan]:
    """Scan a queue; at the end, letters that were not acknowledged return in their old order. The
    profile `quorum` works for every queue; `classic` is quicker for classic ones.

    Raises BrokerUnavailable; the queue must be there (`jobctl topology apply`).
    """
    async with connected(url, f"scan of {queue}") as connection:
        with raising_broker_unavailable(f"can't scan {queue}"):
            channel = await open_channel(underlying(connection), confirms=False)
            scan = Scan(underlying(connection), channel, queue, profile)
            await scan.start()
            try:
                yield scan
            finally:  # also when the caller has seen enough
                await scan.settle()
