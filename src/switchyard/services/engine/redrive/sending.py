"""Send dead letters back: publish, confirm, record, and only then acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from switchyard.broker.errors import LaneFull, PublishError
from switchyard.broker.lanes import LANES, Lane, lane_named, lane_of, queue_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import Accepted, Outgoing
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.engine.bulk.session import BulkSession
from switchyard.services.engine.dead.changes import Change, InvalidRedrive, make_copy
from switchyard.services.engine.dead.letters import DeadLetterLike
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import (
    LeftoverLetter,
    LetterEdit,
    NewJob,
    RedrivenCopy,
)
from switchyard.services.engine.records.states import DeadLetterState, State

BATCH = 200
"""Letters that are read, published and confirmed together."""
MAX_NOTES = 100

Depth = Callable[[str], Awaitable[int]]
"""Returns the number of messages that wait in a queue."""


@dataclass(frozen=True, slots=True)
class LetterDifference:
    """Difference that a change makes to one letter."""

    letter_id: str
    lines: tuple[str, ...]
    """A unified diff of the message as JSON, before and after."""


@dataclass(slots=True)
class RedriveCounts:
    """Counts of a redrive so far."""

    matched: int = 0
    done: int = 0
    """Redriven: published, confirmed, acknowledged."""
    dropped: int = 0
    """Letters of jobs that have succeeded, or were cancelled or redriven meanwhile."""
    invalid: int = 0
    """Letters that stay in `jobs.dead`, as they are invalid with the change."""
    routes: dict[str, int] = field(default_factory=dict, compare=False)
    """Number of letters that went, or would go, to each routing key."""
    notes: list[str] = field(default_factory=list)
    """One line for each letter that was, or in a plan would be, dropped or invalid; at most 100."""
    differences: list[LetterDifference] = field(default_factory=list)
    """For a plan with a change: the differences in the first five letters."""

    def note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class RedriveMessage:
    """A letter, and the job that goes back in its place."""

    letter: DeadLetterLike
    message: JobMessage
    routing_key: str
    queue: str
    job: NewJob | None
    """The job, where the redrive changes it."""

    @property
    def redrives(self) -> int:
        return self.message.metadata.redrives


class LetterSender:
    """Sends letters back, all with the same change."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        change: Change,
        *,
        lanes: tuple[Lane, ...] = LANES,
        remote: bool,
    ) -> None:
        """`remote`: whether the change was requested over HTTP."""
        self._registry = registry
        self._ledger = ledger
        self._change = change
        self._lanes = lanes
        self._remote = remote

    async def prepare(
        self, batch: Sequence[DeadLetterLike], counts: RedriveCounts, *, drop: bool
    ) -> list[RedriveMessage]:
        """Make the copies of the letters that can be sent. With `drop`, remove letters from the
        queue whose jobs need no redrive any more. Raises ExpressionStopped."""
        generations = await self._ledger.redrives.job_generations([letter.id for letter in batch])
        finished: list[DeadLetterLike] = []
        redriven: list[tuple[DeadLetterLike, int]] = []
        sendable: list[DeadLetterLike] = []
        for letter in batch:
            state, redrives = generations.get(letter.id, (State.DEAD, 0))
            if state in (State.SUCCEEDED, State.CANCELLED):
                counts.note(f"{letter.id}: dropped, the job has {state} meanwhile")
                finished.append(letter)
            elif letter.message is not None and redrives > letter.redrives:
                counts.note(f"{letter.id}: dropped, it was redriven before")
                redriven.append((letter, redrives))
            else:
                sendable.append(letter)
        copies = await self._make_copies_in_thread(sendable, counts)
        counts.dropped += len(finished) + len(redriven)
        if drop:
            await self._remove_finished(finished, redriven)
        return copies

    async def _remove_finished(
        self, finished: Sequence[DeadLetterLike], redriven: Sequence[tuple[DeadLetterLike, int]]
    ) -> None:
        """Remove letters of jobs that have ended, or were redriven since (with the job's
        redrives)."""
        moment = self._ledger.clock.time()
        if finished:
            ids = [letter.id for letter in finished]
            await self._ledger.dead_letters.mark_dead_state(ids, DeadLetterState.DROPPED, moment)
            await self._ledger.redrives.record_leftovers(_leftovers(finished))
        if redriven:  # a later letter of the same job, which the index may have, stays as it is
            await self._ledger.redrives.record_redriven(
                [RedrivenCopy(letter.id, redrives) for letter, redrives in redriven],
                moment,
                _leftovers([letter for letter, _ in redriven]),
            )
        for letter in (*finished, *(letter for letter, _ in redriven)):
            letter.ack()

    async def record_plan(self, copies: Sequence[RedriveMessage], session: BulkSession) -> None:
        """Record that letters are about to be sent. Ends the handler if the operation's hold is
        lost."""
        moment = self._ledger.clock.time()
        edits = [
            LetterEdit(
                letter_id=copy.letter.id,
                redrives=copy.letter.redrives,
                operation_id=session.id,
                routing_key=copy.routing_key,
                edited_by=session.operation.created_by,
                edited_at=moment,
                headers=copy.letter.info.headers(),
                original=copy.letter.body,
                edited=copy.message.encode(),
            )
            for copy in copies
            if not self._change.is_empty
        ]
        redrives = {copy.letter.id: copy.redrives for copy in copies}
        if not await self._ledger.redrives.record_plan(session.id, session.holder, redrives, edits):
            session.fail_lost()

    async def forget(self, letter_ids: Sequence[str], session: BulkSession) -> None:
        """Record that the broker did not accept planned letters. Ends the handler if the
        operation's hold is lost."""
        if not await self._ledger.redrives.forget_planned(session.id, session.holder, letter_ids):
            session.fail_lost()

    async def send(
        self, publisher: Publisher, copies: Sequence[RedriveMessage], counts: RedriveCounts
    ) -> list[tuple[RedriveMessage, PublishError]]:
        """Publish, record, acknowledge. Return the refused messages with their errors."""
        results = await publisher.publish_many(
            Outgoing(copy.message, copy.routing_key) for copy in copies
        )
        sent: list[RedriveMessage] = []
        dead_lettered: list[DeadLetterLike] = []
        refused: list[tuple[RedriveMessage, PublishError]] = []
        for copy, result in zip(copies, results, strict=True):
            if isinstance(result, Accepted):
                sent.append(copy)
                counts.routes[copy.routing_key] = counts.routes.get(copy.routing_key, 0) + 1
                continue
            refused.append((copy, result))
            if isinstance(result, LaneFull) and result.dead_lettered:
                # The copy is a dead letter itself now: the old letter is not needed.
                copy.letter.ack()
                dead_lettered.append(copy.letter)
        await self._ledger.redrives.record_leftovers(_leftovers(dead_lettered))
        await self._ledger.redrives.record_redriven(
            [RedrivenCopy(copy.letter.id, copy.redrives, copy.job) for copy in sent],
            self._ledger.clock.time(),
            _leftovers([copy.letter for copy in sent]),
        )
        for copy in sent:
            copy.letter.ack()
        counts.done += len(sent)
        return refused

    async def _make_copies_in_thread(
        self, letters: Sequence[DeadLetterLike], counts: RedriveCounts
    ) -> list[RedriveMessage]:
        """Make the copies in a thread, as messages are large; count those that can't be made."""
        # A jq expression may take seconds for each letter: a stop waits for one letter only.
        size = len(letters) if self._change.jq is None else 1
        copies: list[RedriveMessage] = []
        for start in range(0, len(letters), max(size, 1)):
            for message in await asyncio.to_thread(
                self._make_copies, letters[start : start + size]
            ):
                if isinstance(message, RedriveMessage):
                    copies.append(message)
                else:
                    counts.invalid += 1
                    counts.note(message)
        return copies

    def _make_copies(self, letters: Sequence[DeadLetterLike]) -> list[RedriveMessage | str]:
        """Return the copy of each letter, or why there is none."""
        messages: list[RedriveMessage | str] = []
        for letter in letters:
            try:
                messages.append(self._make_copy(letter))
            except InvalidRedrive as error:
                messages.append(f"{letter.id}: not redriven: {error}")
        return messages

    def _make_copy(self, letter: DeadLetterLike) -> RedriveMessage:
        message, routing_key = make_copy(
            letter,
            self._change,
            self._registry,
            remote=self._remote,
            moment=self._ledger.clock.now(),
        )
        lane = lane_of(routing_key)
        worker = self._registry.get_publishable(message.job_type).worker
        before = letter.message
        assert before is not None
        is_changed = (
            not self._change.is_empty or message.metadata.expires_at != before.metadata.expires_at
        )
        job = NewJob(message, lane, worker, routing_key) if is_changed else None
        return RedriveMessage(letter, message, routing_key, queue_name(lane, worker), job)


def _leftovers(letters: Sequence[DeadLetterLike]) -> list[LeftoverLetter]:
    """Return the messages of these letters that are still in `jobs.dead` after their
    acknowledgement."""
    return [
        LeftoverLetter(letter.id, letter.redrives, letter.left_behind)
        for letter in letters
        if letter.left_behind
    ]


class QueueCapacity:
    """Tracks the remaining capacity of queues, less the letters sent there."""

    def __init__(self, lanes: tuple[Lane, ...], depth: Depth) -> None:
        self._lanes = lanes
        self._depth = depth
        self._free_places: dict[str, int] = {}

    async def take(self, queue: str) -> bool:
        """Take a place in the queue; return False when it is full. A full hot lane would
        dead-letter the copy: the new letter would lack the old one's position and dead-letter
        information."""
        if queue not in self._free_places:
            limit = lane_named(lane_of(queue), self._lanes).max_length
            self._free_places[queue] = limit - await self._depth(queue)
        self._free_places[queue] -= 1
        return self._free_places[queue] >= 0

    def refresh(self) -> None:
        """Read the queues' depths anew at the next call."""
        self._free_places.clear()
