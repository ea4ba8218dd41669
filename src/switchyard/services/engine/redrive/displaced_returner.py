"""Return displaced jobs to their queues, unchanged: jobs that a full lane dropped at a restart, and
jobs that no queue was bound for.

A job is published directly to its queue, not to `jobs.topic`: AMQP does not tell whether a routing
key is bound, and a job with an unbound key would become a letter again and again.

Part of the scheduler. Unlike a redrive, this needs no decision, and the job keeps its generation:
an extra copy is only another delivery of the same job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from switchyard.broker.dead.dead_letter_headers import UNBOUND, Reason, read_dead_letter_info
from switchyard.broker.dead.scan import QueuedDeadLetter
from switchyard.broker.errors import NeverTaken, PublishError, Refused
from switchyard.broker.lanes import LANES, Lane, lane_named, lane_of, queue_name
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import (
    Accepted,
    Outgoing,
    Result,
    broker_dead_letters_overflow,
    envelope_of,
)
from switchyard.broker.publish.publisher import Publisher
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.wire.depths import query_queues
from switchyard.services.engine.dead.displaced import as_ordinary
from switchyard.services.engine.dead.indexing import record_of
from switchyard.services.engine.dead.scan import scanning_in_turn
from switchyard.services.engine.jobs.registry import Registry, UnknownJobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.requests import DeadLetterFilter, DeadLetterRecord
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.states import DeadLetterState, State

RETURN_INTERVAL = 5.0
"""Seconds between checks for displaced jobs whose queues have room."""
MAX_PER_TURN = 1_000
"""Letters that one turn returns, at most."""
MAX_PAGES = 100
"""Pages of MAX_PER_TURN letters that are searched for letters whose queue has room."""
DEFAULT_EXCHANGE = ""
"""The exchange that routes a message to the queue that its routing key names."""
BATCH_SIZE = 200
"""Letters published and confirmed together."""
ABSENCE_GRACE_SECONDS = 60.0
"""A letter that was indexed this many seconds ago and was not found in `jobs.dead` counts as
removed."""

_WAITING = (DeadLetterState.WAITING.value,)
_DISPLACED = DeadLetterFilter(reason=str(Reason.DISPLACED))


@dataclass(frozen=True, slots=True)
class _ReturnableLetter:
    """A letter whose queue has room for it."""

    letter: DeadLetter
    queue: str


@dataclass
class DisplacedJobReturner:
    """Sends back displaced jobs, as far as their queues are there and have room."""

    settings: BrokerSettings
    registry: Registry
    ledger: Ledger
    publisher: Publisher
    lanes: tuple[Lane, ...] = LANES
    interval: float = RETURN_INTERVAL

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("displaced jobs")

    async def run(self) -> None:
        """Send back displaced jobs again and again, until cancelled."""
        while True:
            try:
                await self.turn()
            except (LedgerError, PublishError) as error:
                self._log.warning("displaced jobs not returned", error=str(error))
            await asyncio.sleep(self.interval)

    async def turn(self) -> int:
        """Send back the jobs whose queues have room now; return how many. The others wait in
        `jobs.dead`. Raises BrokerUnavailable, LedgerError."""
        returnable = await self._find_returnable()
        if not returnable:
            return 0
        sent = 0
        async with scanning_in_turn(self.settings, self.ledger) as scan:
            queued = [letter async for letter in scan.letters() if letter.id in returnable]
            for start in range(0, len(queued), BATCH_SIZE):
                sent += await self._send(queued[start : start + BATCH_SIZE], returnable)
        letters = [each.letter for each in returnable.values()]
        await self._give_up(letters, {letter.id for letter in queued})
        if sent:
            self._log.warning("displaced jobs returned", jobs=sent)
        return sent

    async def _find_returnable(self) -> dict[str, _ReturnableLetter]:
        """Return the letters whose queues have room, the oldest first, by id."""
        returnable: dict[str, _ReturnableLetter] = {}
        capacity: dict[str, int] = {}
        after: tuple[float, str] | None = None
        for _ in range(MAX_PAGES):
            letters = await self.ledger.dead_letters.letters_in(
                _DISPLACED, states=_WAITING, after=after, limit=MAX_PER_TURN
            )
            queues = {letter.id: self._queue_of(letter) for letter in letters}
            capacity |= await self._capacity_of(
                {each for each in queues.values() if each not in capacity}
            )
            for letter in letters:
                queue = queues[letter.id]
                if capacity[queue] > 0:
                    capacity[queue] -= 1
                    returnable[letter.id] = _ReturnableLetter(letter, queue)
                    if len(returnable) == MAX_PER_TURN:
                        return returnable
            if len(letters) < MAX_PER_TURN:
                return returnable
            after = letters[-1].dead_at, letters[-1].id
        return returnable

    def _queue_of(self, letter: DeadLetter) -> str:
        """Find the queue where the job belongs now; its type may have been given to another kind of
        worker."""
        former_queue = read_dead_letter_info(
            letter.headers, letter.routing_key or "", letter.job_type
        ).queue
        lane = letter.lane or lane_of(former_queue)
        try:
            return queue_name(lane, self.registry.get_publishable(letter.job_type or "").worker)
        except UnknownJobType:
            return former_queue or queue_name(lane, letter.worker or "")

    async def _capacity_of(self, queues: Collection[str]) -> dict[str, int]:
        """Return how many messages fit into each queue; none where it does not exist."""
        lanes = {lane.name: lane for lane in self.lanes}
        lane_queues = sorted(each for each in queues if lane_of(each) in lanes)
        if not lane_queues:
            return dict.fromkeys(queues, 0)
        depths = await query_queues(self.settings.require_amqp_url(), lane_queues)
        return dict.fromkeys(queues, 0) | {
            queue: lanes[lane_of(queue)].max_length - depth.ready
            for queue, depth in depths.items()
            if depth is not None
        }

    async def _send(
        self, letters: Sequence[QueuedDeadLetter], returnable: Mapping[str, _ReturnableLetter]
    ) -> int:
        """Publish, record and acknowledge letters; remove those that their jobs no longer need.
        Return how many jobs were returned, or are held by a pause."""
        generations = await self.ledger.redrives.job_generations([letter.id for letter in letters])
        unneeded: list[QueuedDeadLetter] = []
        not_returnable: list[QueuedDeadLetter] = []
        returning: list[tuple[QueuedDeadLetter, JobMessage]] = []
        for letter in letters:
            state, redrives = generations.get(letter.id, (State.QUEUED, letter.redrives))
            if state in (State.SUCCEEDED, State.CANCELLED) or redrives > letter.redrives:
                unneeded.append(letter)
            elif state is State.DEAD or letter.message is None:
                not_returnable.append(letter)
            else:
                # Its time in the lane begins anew: it left the lane through no fault of its own.
                message = letter.message.with_metadata(queued_at=self.ledger.clock.now())
                returning.append((letter, message))
        ids = [letter.id for letter, _ in returning]
        held = await self.ledger.pauses.hold(ids, self.ledger.clock.time())
        paused = [letter for letter, _ in returning if letter.id in held]  # kept in the ledger
        returning = [(letter, message) for letter, message in returning if letter.id not in held]
        results = await asyncio.gather(
            *(
                self._publish(letter, message, returnable[letter.id].queue)
                for letter, message in returning
            )
        )
        sent: list[QueuedDeadLetter] = []
        for (letter, _), result in zip(returning, results, strict=True):
            if isinstance(result, Accepted):
                sent.append(letter)
            elif isinstance(result, Refused) and self._dead_letters_overflow(
                returnable[letter.id].queue
            ):
                letter.ack()  # the published copy is a dead letter itself now
            elif isinstance(result, NeverTaken):
                not_returnable.append(letter)
            else:
                self._log.warning("displaced job not returned", job_id=letter.id, error=str(result))
        moment = self.ledger.clock.time()
        await self.ledger.dead_letters.record_returned(
            [letter.id for letter in (*sent, *paused)], moment
        )
        if sent:
            await self.ledger.jobs.mark_queued([letter.id for letter in sent], moment)
        if unneeded:
            ids = [letter.id for letter in unneeded]
            await self.ledger.dead_letters.mark_dead_state(ids, DeadLetterState.DROPPED, moment)
        records = [record_of(as_ordinary(letter), self.registry) for letter in not_returnable]
        await self.ledger.dead_letters.record_not_displaced(records)
        for letter in (*sent, *paused, *unneeded):
            letter.ack()
        return len(sent) + len(paused)

    async def _publish(self, letter: QueuedDeadLetter, message: JobMessage, queue: str) -> Result:
        outgoing = Outgoing(message, letter.info.routing_key)
        result: Result
        try:
            await self.publisher.send(DEFAULT_EXCHANGE, queue, envelope_of(message))
            result = Accepted(message.job_id, outgoing.routing_key)
        except PublishError as error:
            result = error
        self.publisher.count(outgoing, result)
        return result

    def _dead_letters_overflow(self, queue: str) -> bool:
        """Tell whether the broker dead-letters messages that do not fit into the queue."""
        lane = lane_named(lane_of(queue), self.lanes)
        return lane.dead_letters_overflow and broker_dead_letters_overflow(self.settings.profile)

    async def _give_up(self, letters: Collection[DeadLetter], found_ids: Collection[str]) -> None:
        """Mark letters as dropped that are missing from `jobs.dead`, and their jobs as dead;
        `jobctl dead redrive --from-ledger` can send these back."""
        moment = self.ledger.clock.time()
        given_up = [
            each
            for each in letters
            if each.id not in found_ids and each.updated_at < moment - ABSENCE_GRACE_SECONDS
        ]
        if not given_up:
            return
        ids = [each.id for each in given_up]
        self._log.error("displaced jobs missing from jobs.dead", jobs=len(ids), ids=ids[:5])
        await self.ledger.dead_letters.record_dead([_death_of(each, moment) for each in given_up])
        await self.ledger.dead_letters.mark_dead_state(ids, DeadLetterState.DROPPED, moment)


def _death_of(letter: DeadLetter, moment: float) -> DeadLetterRecord:
    return DeadLetterRecord(
        id=letter.id,
        job_id=letter.job_id,
        reason=str(Reason.UNROUTABLE if letter.error_type == UNBOUND else Reason.OVERFLOWED),
        dead_at=moment,
        body=letter.body,
        error_type=letter.error_type,
        error_message="its letter was taken out of jobs.dead before it went back",
        redrives=letter.redrives,
        attempts=letter.attempts,
    )
