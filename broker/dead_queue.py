"""Reading `jobs.dead` and `jobs.dead.log` message by message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from broker.connection import CHANNEL_ERRORS, connect, underlying
from broker.dead import DeathCertificate, letter_id, read
from broker.delivery import Delivery
from broker.errors import BrokerAway, MalformedMessage
from broker.incoming import Incoming
from broker.lanes import DEAD_QUEUE
from broker.message import JobMessage
from broker.wire import PipelinedChannel, open_channel

PREFETCH = 65_535
"""Letters that one consumer of a scan holds at most: the most that AMQP can say. To a consumer that
says nothing a quorum queue sends 2,000 and stops; and what it sends in the place of others that
were acknowledged loses its own place in the queue (both measured on 4.3.6)."""
IDLE_SECONDS = 1.0
"""A scan ends when the broker has sent nothing for so long and has nothing left to send: the rest
is held by another scan."""
IDLE_LIMIT = 30
"""A scan also ends when the broker has sent nothing of what it has for so many idle times."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message in `jobs.dead`."""

    delivery: Delivery
    certificate: DeathCertificate
    message: JobMessage | None
    """None when the body is no job message."""

    @classmethod
    def of(cls, delivery: Delivery) -> Letter:
        try:
            message = JobMessage.decode(delivery.body)
        except MalformedMessage:
            message = None
        return cls(delivery, read(delivery.headers, delivery.routing_key), message)

    @property
    def id(self) -> str:
        """The job's id; `raw-…` for a body that is no job message."""
        return letter_id(self.message.job_id if self.message else None, self.delivery.body)

    @property
    def redrives(self) -> int:
        return self.message.metadata.redrives if self.message else 0

    @property
    def body(self) -> bytes:
        return self.delivery.body

    def ack(self) -> bool:
        """Take it out of the queue. False when the channel is gone: it is back in its place."""
        return self.delivery.ack()


class Scan:
    """Letters of one queue, oldest first, each held until it is acknowledged or the scan ends.

    What was not acknowledged then is back in its place: a scan does not disturb the order.
    """

    def __init__(self, channel: PipelinedChannel, queue: str) -> None:
        self._channel = channel
        self._queue = queue
        self._arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        self._tags = (f"scan.{number}" for number in count(1))
        self._tag = ""
        self._fetched = 0
        self.total = 0
        """Messages that waited in the queue when the scan began."""

    async def start(self) -> None:
        self.total = await self.depth(self._queue)
        await self._channel.basic_qos(prefetch_count=PREFETCH)
        await self._fetch()

    async def letters(self) -> AsyncIterator[Letter]:
        """Those that waited when the scan began. Raises BrokerAway when the connection is lost."""
        for _ in range(self.total):
            delivery = await self._next()
            if delivery is None:
                return
            yield Letter.of(delivery)

    async def _next(self) -> Delivery | None:
        """The next one, or None when no more are to come."""
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        if self._fetched >= PREFETCH:
            await self._channel.cancel(self._tag)
            await self._fetch()
        for _ in range(IDLE_LIMIT):
            try:
                return await asyncio.wait_for(self._arrived.get(), IDLE_SECONDS)
            except TimeoutError:
                if self._channel.closed.done():
                    raise BrokerAway(
                        "the connection was lost during the scan; every letter that was not "
                        "handled is back in its place",
                        maybe_accepted=False,
                    ) from None
                if await self.depth(self._queue) == 0:
                    return None
        return None

    async def _fetch(self) -> None:
        """Start a consumer; those before it keep what they have fetched."""
        self._tag = next(self._tags)
        self._fetched = 0
        await self._channel.consume(self._queue, self._tag, self._put)

    def _put(self, message: Incoming) -> None:
        self._fetched += 1
        self._arrived.put_nowait(Delivery.of(message, self._queue, self._channel))

    async def depth(self, queue: str) -> int:
        """Messages that wait in a queue, this one or another. Raises aiormq's error when there is
        no such queue, which ends the scan."""
        declared = await self._channel.queue_declare(queue, passive=True)
        return declared.message_count or 0

    async def settle(self) -> None:
        """Wait until the queue has seen all acknowledgements.

        A channel is served in order: the answer to any call comes after what was sent before. For
        a quorum queue that is not enough. Its channel holds back acknowledgements while many are
        under way, and forgets them when it is closed (measured on 4.3.6); to cancel a consumer
        waits for those under way, and the next call comes after those held back.
        """
        await asyncio.sleep(0)
        await self._channel.cancel(self._tag)
        await self._channel.queue_declare(self._queue, passive=True)


@asynccontextmanager
async def scanning(url: str, queue: str = DEAD_QUEUE) -> AsyncIterator[Scan]:
    """Scan a queue; at the end, what was not acknowledged is returned in its old order.

    Raises BrokerAway; the queue must be there (`jobctl topology apply`).
    """
    connection = await connect(url, f"scan of {queue}")
    try:
        channel = await open_channel(underlying(connection), confirms=False)
        scan = Scan(channel, queue)
        await scan.start()
        try:
            yield scan
        finally:  # also when the caller has seen enough
            await scan.settle()
    except CHANNEL_ERRORS as error:
        raise BrokerAway(f"can't scan {queue}: {error}", maybe_accepted=False) from error
    finally:
        await connection.close()


@asynccontextmanager
async def queue_depths(url: str) -> AsyncIterator[Callable[[str], Awaitable[int]]]:
    """A function that tells how many messages wait in a queue. Raises BrokerAway, also where there
    is no such queue."""
    connection = await connect(url, "queue depths")
    try:
        channel = await open_channel(underlying(connection), confirms=False)

        async def depth(queue: str) -> int:
            declared = await channel.queue_declare(queue, passive=True)
            return declared.message_count or 0

        yield depth
    except CHANNEL_ERRORS as error:
        raise BrokerAway(f"can't ask for depths: {error}", maybe_accepted=False) from error
    finally:
        await connection.close()
