"""Publish for requests that wait for an answer: fail within two seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from switchyard.broker.errors import BrokerUnavailable, PublishError
from switchyard.broker.publish.outcome import Outgoing, Result
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.reconnector import Guard

CONNECT_TIMEOUT = 0.7
"""Seconds that a publish waits for a connection; connecting goes on for the next one."""
CONNECTION_POLL_INTERVAL = 1.0
"""Seconds between checks whether there is a connection."""
QUEUE_TIMEOUT = 0.4
"""Seconds that it waits to hear whether its queue is there, where that is not known."""
CONFIRM_TIMEOUT = 0.8
"""Seconds to wait for a publish's confirm after that: together less than two."""


class TimeBoundedPublisher(Publisher):
    """Answers within two seconds, whatever the broker does.

    With `keep_connected` in the background, the first publish does not wait for a connection.
    A publish that found no connection in time was not sent. One whose confirm did not come in
    time may be on the broker: the outbox publishes it again, and it runs once.
    """

    queue_timeout = QUEUE_TIMEOUT

    def __init__(self, settings: BrokerSettings, *, name: str, guard: Guard | None = None) -> None:
        confirm_timeout = min(settings.confirm_timeout, CONFIRM_TIMEOUT)
        settings = settings.model_copy(update={"confirm_timeout": confirm_timeout})
        super().__init__(settings, name=name, guard=guard)

    async def keep_connected(self) -> None:
        """Connect now, and again after each loss, until cancelled."""
        while True:
            self.connect_soon()
            await asyncio.sleep(CONNECTION_POLL_INTERVAL)

    @property
    def is_connected(self) -> bool:
        """Whether a publish could be sent now."""
        return self._free_channel() is not None

    async def publish_many(self, jobs: Iterable[Outgoing]) -> list[Result]:
        jobs = list(jobs)
        try:
            await self._wait_for_connection()
        except PublishError as error:
            for job in jobs:
                self.count(job, error)
            return [error for _ in jobs]
        return await super().publish_many(jobs)

    async def send(self, exchange: str, routing_key: str, envelope: Envelope) -> None:
        await self._wait_for_connection()
        await super().send(exchange, routing_key, envelope)

    async def _wait_for_connection(self) -> None:
        if self._free_channel() is not None:
            return
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._wait_for_channel()
        except TimeoutError as error:
            raise BrokerUnavailable(
                f"no connection to the broker within {CONNECT_TIMEOUT:g} s", maybe_accepted=False
            ) from error
