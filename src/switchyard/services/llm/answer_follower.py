"""Follow an answer as it is written: first the pieces that the worker publishes, then the job's
record from the ledger. A reader that is too slow for the pieces, or misses some, still gets the
record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import ExitStack
from dataclasses import dataclass

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.engine.monitoring.job_events import TEXT, EventHub, JobEvent
from switchyard.services.engine.records.results import JobRecord

HEARTBEAT_INTERVAL = 15.0
"""Seconds without a piece after which a stream yields None."""


@dataclass(frozen=True, slots=True)
class LlmText:
    """A piece of an answer while it is written."""

    text: str
    offset: int
    """Characters of the answer before it; 0 if the answer begins, perhaps anew. If it is more than
    came before, a piece was left out; the result has the complete answer."""


class AnswerStream:
    """The text that a job writes from now on. Make it before the job is published; `close` it when
    done."""

    def __init__(self, hub: EventHub, job_id: str) -> None:
        def matches(event: JobEvent) -> bool:
            return event.job_id == job_id and event.name == TEXT

        self.job_id = job_id
        self._open = ExitStack()
        self._subscription = self._open.enter_context(hub.subscribe(matches))

    def close(self) -> None:
        self._open.close()

    async def follow(
        self, end: Awaitable[JobRecord | None], *, heartbeat: float = HEARTBEAT_INTERVAL
    ) -> AsyncGenerator[LlmText | JobRecord | None, None]:
        """Yield the pieces of the answer, and last the job's record as `end` gives it; None after
        `heartbeat` seconds without a piece. Raises what `end` raises."""
        end_task = asyncio.ensure_future(end)
        end_task.add_done_callback(lambda _: self._subscription.close())
        try:
            while True:
                event = await self._subscription.next(heartbeat)
                if event is not None:
                    piece = _text_piece(event)
                    if piece is not None:
                        yield piece
                elif self._subscription.is_over:
                    break
                else:
                    yield None
            while not end_task.done():  # too slow for the pieces
                await asyncio.wait([end_task], timeout=heartbeat)
                if not end_task.done():
                    yield None
            record = await end_task
            if record is not None:
                yield record
        finally:
            await end_tasks(end_task)


def _text_piece(event: JobEvent) -> LlmText | None:
    """Read a piece of text from an event; None for an event that is malformed, as anybody who may
    publish on the broker may have written it."""
    text, offset = event.fields.get("text"), event.fields.get("offset")
    if not isinstance(text, str) or not isinstance(offset, int) or isinstance(offset, bool):
        return None
    return LlmText(text, offset) if 0 <= offset < 2**40 else None
