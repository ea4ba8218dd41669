"""Commands to workers, over the exchange `jobs.control`: each worker hears each command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

from pydantic_core import from_json
from structlog.typing import FilteringBoundLogger

from switchyard.broker.errors import Unroutable
from switchyard.broker.lanes import CONTROL_EXCHANGE
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.away import CHANNEL_ERRORS
from switchyard.broker.wire.channel import PipelinedChannel, open_channel
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.incoming import Incoming
from switchyard.broker.wire.link import FIRST_BACKOFF, LAST_BACKOFF, Link


async def send_cancel(publisher: Publisher, job_id: str) -> None:
    """Tell the workers to stop a running job, if one of them runs it. Best effort: the ledger
    is what keeps a cancelled job from being run again."""
    body = json.dumps({"command": "cancel", "job_id": job_id}).encode()
    envelope = Envelope(body=body, message_id=str(uuid4()))
    with suppress(Unroutable):  # no worker is listening: nothing runs
        await publisher.send(CONTROL_EXCHANGE, "cancel", envelope)


class ControlListener:
    """Hears commands on a queue of its own, which goes away with its connection."""

    def __init__(
        self, link: Link, on_cancel: Callable[[str], None], log: FilteringBoundLogger
    ) -> None:
        self._link = link
        self._on_cancel = on_cancel
        self._log = log

    async def run(self) -> None:
        """Listen until cancelled, again after each loss of the connection."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                channel = await open_channel(await self._link.connection(), confirms=False)
                declared = await channel.queue_declare(exclusive=True, auto_delete=True)
                queue = declared.queue or ""
                await channel.queue_bind(queue, CONTROL_EXCHANGE)
                await channel.consume(queue, f"control.{queue}", partial(self._received, channel))
                backoff = FIRST_BACKOFF
                await asyncio.shield(channel.closed)
            except CHANNEL_ERRORS as error:
                self._log.warning("can't listen for commands", error=str(error))
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, LAST_BACKOFF)

    def _received(self, channel: PipelinedChannel, message: Incoming) -> None:
        channel.ack(message.delivery_tag)
        try:
            # Unlike `json.loads`, with one error for whatever is wrong: nested too deep, too.
            command = from_json(message.body)
            name, job_id = command["command"], str(command["job_id"])
        except (ValueError, TypeError, KeyError) as error:
            self._log.warning("not a command", error=str(error))
            return
        if name == "cancel":
            self._on_cancel(job_id)
        else:
            self._log.warning("unknown command", command=name)
