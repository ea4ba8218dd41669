"""Commands to workers, over the exchange `jobs.control`: each worker receives each command."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from aiormq.connection import Connection
from pydantic_core import from_json
from structlog.typing import FilteringBoundLogger

from switchyard.broker.consume.listening import consume_exchange, keep_listening
from switchyard.broker.errors import Unroutable
from switchyard.broker.lanes import CONTROL_EXCHANGE
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.wire.envelope import Envelope
from switchyard.broker.wire.reconnector import Reconnector


async def send_cancel(publisher: Publisher, job_id: str) -> None:
    """Tell the workers to stop a running job, if one of them runs it. Best effort: the ledger keeps
    a cancelled job from running again."""
    body = json.dumps({"command": "cancel", "job_id": job_id}).encode()
    envelope = Envelope(body=body, message_id=str(uuid4()))
    with suppress(Unroutable):  # no worker is listening: nothing runs
        await publisher.send(CONTROL_EXCHANGE, "cancel", envelope)


class ControlListener:
    """Receives commands on a queue of its own, which is deleted with its connection."""

    def __init__(
        self, reconnector: Reconnector, on_cancel: Callable[[str], None], log: FilteringBoundLogger
    ) -> None:
        self._reconnector = reconnector
        self._on_cancel = on_cancel
        self._log = log

    async def run(self) -> None:
        """Listen until cancelled, again after each loss of the connection."""
        await keep_listening(self._reconnector, self._listen, self._log, "commands not received")

    async def _listen(self, connection: Connection, reset_backoff: Callable[[], None]) -> None:
        await consume_exchange(
            connection, reset_backoff, CONTROL_EXCHANGE, self._on_message, tag="control"
        )

    def _on_message(self, body: bytes) -> None:
        try:
            # Unlike `json.loads`, it raises ValueError for all errors, deep nesting included.
            command = from_json(body)
            name, job_id = command["command"], str(command["job_id"])
        except (ValueError, TypeError, KeyError) as error:
            self._log.warning("control message invalid", error=str(error))
            return
        if name == "cancel":
            self._on_cancel(job_id)
        else:
            self._log.warning("control command unknown", command=name)
