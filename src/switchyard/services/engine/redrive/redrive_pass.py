"""Make one pass of a redrive through the letters: send those that may go, and hold those whose
queues are full."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext

from switchyard.broker.errors import LaneFull, NeverTaken, PublishError
from switchyard.broker.lanes import HOT, lane_of
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.engine.dead.letters import DeadLetterLike
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.redrive.redrive_progress import STATE_POLL_INTERVAL, RedriveRun
from switchyard.services.engine.redrive.sending import (
    BATCH,
    LetterSender,
    QueueCapacity,
    RedriveMessage,
)

MAX_RATE_WAIT = 5.0
"""Seconds to wait, while holding letters, until the rate allows the next one. If it takes longer,
the pass ends, so that others can scan `jobs.dead`."""


class RedrivePass:
    """One pass through the letters, for as long as these may be held."""

    def __init__(
        self,
        run: RedriveRun,
        sender: LetterSender,
        publisher: Publisher,
        capacity: QueueCapacity,
        hold: float,
    ) -> None:
        self._run = run
        self._session = run.session
        self._sender = sender
        self._publisher = publisher
        self._capacity = capacity
        self._ends_at = time.monotonic() + hold
        self._held: dict[str, deque[RedriveMessage]] = {}
        """By queue: copies for which it had no room, oldest first."""

    async def run(self, letters: AsyncGenerator[DeadLetterLike, None]) -> bool:
        """Send the letters; return True when all were read and none is held."""
        self._run.begin_pass()
        await self._session.move(BulkState.RUNNING)
        batch: list[DeadLetterLike] = []
        async for letter in letters:
            batch.append(letter)
            if len(batch) >= BATCH:
                await self._send_all(batch)
                batch = []
                if self._is_over or self._run.has_enough:
                    return self._run.has_enough and not self._held
        await self._send_all(batch)
        await self._wait_for_capacity()
        return not self._held and not (self._is_over and batch and not self._run.has_enough)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    async def _send_all(self, batch: Sequence[DeadLetterLike]) -> None:
        """Send a batch as fast as outcomes and rate allow."""
        unsent = await self._run.filter_unsent(batch)
        queued = deque(await self._sender.prepare(unsent, self._run.counts, drop=True))
        while queued and not self._is_over and not self._run.has_enough:
            allowed = await self._run.allowance()
            note = self._run.canary or self._run.traffic.why
            await self._session.move(BulkState.RUNNING, note)
            if allowed == 0:
                await self._run.save_notes()
                await self._session.sleep(STATE_POLL_INTERVAL)
                continue
            if self._session.rate_wait > MAX_RATE_WAIT:
                self._ends_at = time.monotonic()  # too long to hold letters
                return
            allowed_now = await self._run.traffic.allowance(min(len(queued), allowed or BATCH))
            number = await self._session.take_slots(
                allowed_now, until=self._session.clock.time() + MAX_RATE_WAIT
            )
            await self._send([queued.popleft() for _ in range(number)])
            await self._run.save_notes()

    async def _send(self, copies: Sequence[RedriveMessage]) -> None:
        """Send the letters whose queues have room, and hold the others."""
        self._capacity.refresh()
        sendable: list[RedriveMessage] = []
        for copy in copies:
            queued = self._held.get(copy.queue)
            if queued or not await self._capacity.take(copy.queue):
                self._held.setdefault(copy.queue, deque()).append(copy)
            else:
                sendable.append(copy)
        await self._send_now(sendable)

    async def _send_now(self, copies: Sequence[RedriveMessage]) -> None:
        if not copies:
            return
        # Redriven hot jobs are hot jobs, too: they need not give way to others.
        is_hot = all(lane_of(copy.queue) == HOT.name for copy in copies)
        async with nullcontext() if is_hot else self._run.traffic.turn(self._session):
            await self._sender.record_plan(copies, self._session)
            self._run.count_planned_letters(copies)
            refused = await self._sender.send(self._publisher, copies, self._run.counts)
        not_taken = [copy for copy, error in refused if not _may_be_accepted(error)]
        await self._sender.forget(self._run.uncount(not_taken), self._session)
        for copy, error in reversed(refused):
            if isinstance(error, NeverTaken):
                self._run.counts.invalid += 1
                self._run.counts.note(f"{copy.letter.id}: not redriven: {error}")
                continue
            if not isinstance(error, LaneFull):
                raise error  # the runner repeats the pass
            if not error.dead_lettered:
                self._held.setdefault(copy.queue, deque()).appendleft(copy)

    async def _wait_for_capacity(self) -> None:
        while self._held and not self._is_over and not self._run.has_enough:
            queues = ", ".join(sorted(self._held))
            await self._run.save_notes()
            await self._session.move(BulkState.WAITING, f"waits for room in {queues}")
            await self._session.sleep(STATE_POLL_INTERVAL)
            self._capacity.refresh()
            for queue in list(self._held):
                await self._send_held(queue)
        await self._session.move(BulkState.RUNNING)

    async def _send_held(self, queue: str) -> None:
        queued = self._held[queue]
        sendable: list[RedriveMessage] = []
        allowed = await self._run.allowance()
        number = min(len(queued), BATCH if allowed is None else allowed)
        if number > 0:
            number = await self._run.traffic.allowance(number)
            number = await self._session.take_slots(
                number, until=self._session.clock.time() + STATE_POLL_INTERVAL
            )
        while len(sendable) < number and await self._capacity.take(queue):
            sendable.append(queued.popleft())
        if not queued:
            del self._held[queue]
        await self._send_now(sendable)


def _may_be_accepted(error: PublishError) -> bool:
    return bool(getattr(error, "maybe_accepted", False))
