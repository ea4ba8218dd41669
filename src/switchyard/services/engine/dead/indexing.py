"""Maintain the index of dead letters in the ledger, from their copies in `jobs.dead.log`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import structlog
from aiormq.connection import Connection

from switchyard.broker.consume.delivery import Delivery
from switchyard.broker.consume.listening import end_event, keep_listening, run_until_event
from switchyard.broker.dead.dead_letter_headers import UNBOUND, Reason
from switchyard.broker.dead.scan import QueuedDeadLetter, scanning
from switchyard.broker.lanes import (
    DEAD_LOG_QUEUE,
    DEAD_TTL_SECONDS,
    split_routing_key,
)
from switchyard.broker.message import now
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.broker.times import parse_moment
from switchyard.broker.wire.channel import open_channel
from switchyard.broker.wire.connection import close_quietly
from switchyard.broker.wire.reconnector import Reconnector
from switchyard.services.engine.dead.causes import cause_of
from switchyard.services.engine.dead.displaced import PAUSED, classify_displaced
from switchyard.services.engine.dead.letters import cause_of_letter
from switchyard.services.engine.dead.scan import scanning_in_turn
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import Sleep
from switchyard.services.engine.records.errors import LedgerError, RowRejected
from switchyard.services.engine.records.requests import DeadLetterRecord, NewJob
from switchyard.services.engine.records.results import DeadLetter

BATCH = 200
"""Letters written to the ledger together."""
CLEAN_UP_INTERVAL = 600.0
"""Seconds between clean-ups of letters that have expired on the broker."""
GRACE_SECONDS = 3600.0
"""Seconds after its expiry for which a letter still counts as present, as the index is a little
late."""

_log = structlog.get_logger("dead letter index")


def record_of(letter: QueuedDeadLetter, registry: Registry) -> DeadLetterRecord:
    """Return the index record of a letter."""
    info, message = letter.info, letter.message
    try:
        lane, job_type = split_routing_key(info.routing_key)
    except ValueError:
        lane, job_type = "", ""
    if message is not None:
        job_type = message.job_type
    worker: str | None
    if (known := registry.find_publishable(job_type)) is not None:
        worker = known.worker
    else:
        # The queue of an unbound job is known from its record.
        is_unbound = info.error_type == UNBOUND and info.reason is Reason.DISPLACED
        worker = info.queue.partition(".")[2] or None if is_unbound else None
    job = None
    if message is not None:
        job = NewJob(message, lane, worker or "", info.routing_key)
    return DeadLetterRecord(
        id=letter.id,
        job_id=message.job_id if message else None,
        reason=str(info.reason),
        dead_at=(parse_moment(info.dead_at) or now()).timestamp(),
        body=letter.delivery.body,
        headers=_headers(letter),
        job_type=job_type or None,
        lane=lane or None,
        routing_key=info.routing_key,
        worker=worker,
        error_type=info.error_type or None,
        error_message=info.message or None,
        traceback=info.traceback or None,
        redrives=letter.redrives,
        attempts=message.metadata.attempts if message else 0,
        fingerprint=cause_of_letter(letter).fingerprint,
        job=job,
    )


def fingerprint_of(letter: DeadLetter) -> str:
    """Return the fingerprint of an indexed letter."""
    return cause_of(
        letter.reason, letter.job_type, letter.error_type, letter.error_message, letter.traceback
    ).fingerprint


async def clean_up(ledger: Ledger) -> None:
    """Set missing fingerprints of letters, and mark letters as dropped that have expired on the
    broker. Raises LedgerUnavailable."""
    await ledger.dead_letters.group_letters(fingerprint_of)
    await ledger.dead_letters.drop_expired_letters(
        ledger.clock.time() - DEAD_TTL_SECONDS - GRACE_SECONDS
    )


async def index_waiting(settings: BrokerSettings, ledger: Ledger, registry: Registry) -> int:
    """Index the letters that are in `jobs.dead.log` now; return their number.

    For commands that need a current index without a scheduler. Raises BrokerUnavailable,
    LedgerUnavailable; no letter is lost then.
    """
    count = 0
    async with scanning(
        settings.require_amqp_url(), DEAD_LOG_QUEUE, profile=settings.profile
    ) as scan:
        batch: list[QueuedDeadLetter] = []
        async for letter in scan.letters():
            batch.append(letter)
            if len(batch) >= BATCH:
                count += await _index_batch(batch, ledger, registry)
        count += await _index_batch(batch, ledger, registry)
    await clean_up(ledger)
    return count


@dataclass(frozen=True, slots=True)
class ReindexResult:
    """Result of `reindex`."""

    messages: int
    """Messages in `jobs.dead`."""
    letters: int
    """Distinct letters: identical messages count once."""
    dropped: int
    """Indexed letters that the broker no longer has."""


async def reindex(
    settings: BrokerSettings, ledger: Ledger, registry: Registry, wait: Sleep = asyncio.sleep
) -> ReindexResult:
    """Rebuild the index from `jobs.dead`, for a ledger that was restored from an older copy.
    Letters that it did not know make their jobs dead.

    Waits and raises as `scanning_in_turn` does; no letter is removed from the queue.
    """
    await index_waiting(settings, ledger, registry)
    until = ledger.clock.time()
    async with scanning_in_turn(settings, ledger, wait) as scan:
        letters: dict[str, list[QueuedDeadLetter]] = {}
        async for letter in scan.letters():
            letters.setdefault(letter.id, []).append(letter)
        deaths = list(letters.values())
        for start in range(0, len(deaths), BATCH):
            await _recount(deaths[start : start + BATCH], ledger, registry)
        dropped = await ledger.dead_letters.drop_absent(letters, until)
        return ReindexResult(scan.scanned, len(letters), dropped)


async def _recount(
    deaths: Sequence[Sequence[QueuedDeadLetter]], ledger: Ledger, registry: Registry
) -> None:
    """Index the latest death of each id, with the number of all its messages."""
    records = []
    for letters in deaths:
        latest = max(letters, key=lambda letter: letter.death)
        copies = sum(1 + len(letter.duplicates) for letter in letters)
        records.append(replace(record_of(latest, registry), copies=copies))
    await _write_records(records, ledger, recount=True)


async def _index_batch(batch: list[QueuedDeadLetter], ledger: Ledger, registry: Registry) -> int:
    letters = await classify_displaced(ledger, batch)
    await _write_records([record_of(letter, registry) for letter in letters], ledger)
    displaced = [letter for letter in letters if letter.info.reason is Reason.DISPLACED]
    unbound = [letter for letter in displaced if letter.info.error_type == UNBOUND]
    paused = [letter for letter in displaced if letter.info.error_type == PAUSED]
    dropped = [letter for letter in displaced if letter not in (*unbound, *paused)]
    for event, affected in (
        (
            "the broker dropped accepted jobs from full lanes: they are returned automatically",
            dropped,
        ),
        (
            "no queue was bound for accepted jobs: they are put into their queues automatically",
            unbound,
        ),
        ("paused jobs grew too old for their lanes: they are kept until the pause ends", paused),
    ):
        if affected:
            queues = sorted({letter.info.queue for letter in affected})
            _log.error(event, jobs=len(affected), queues=queues)
    for letter in batch:
        letter.delivery.ack()
    indexed = len(batch)
    batch.clear()
    return indexed


async def _write_records(
    records: Sequence[DeadLetterRecord], ledger: Ledger, *, recount: bool = False
) -> None:
    try:
        await ledger.dead_letters.index_dead(records, recount=recount)
    except RowRejected as error:
        if len(records) == 1:
            # It stays in jobs.dead; retrying it here would block the others.
            _log.error("dead letter not indexed", letter=records[0].id, error=str(error))
            return
        for record in records:
            await _write_records([record], ledger, recount=recount)


class DeadLetterIndexer:
    """Indexes the letters of `jobs.dead.log`; a duty of the scheduler."""

    def __init__(self, settings: BrokerSettings, ledger: Ledger, registry: Registry) -> None:
        self._ledger = ledger
        self._registry = registry
        self._reconnector = Reconnector(settings.require_amqp_url(), "dead letter index", _log)
        self._deliveries: asyncio.Queue[Delivery] = asyncio.Queue()

    async def run(self) -> None:
        """Index letters as they come, until cancelled. Reconnects after each loss of the broker."""
        background = TaskSupervisor(_log)
        background.start("clean up dead letters", self._clean_up_regularly)
        try:
            await keep_listening(
                self._reconnector,
                self._follow,
                _log,
                "dead letters not indexed",
                retry_on=(LedgerError,),
            )
        finally:
            await background.close()
            await self._reconnector.close()

    async def _clean_up_regularly(self) -> None:
        while True:
            try:
                await clean_up(self._ledger)
            except LedgerError as error:
                _log.warning("dead letter clean-up failed", error=str(error))
            await asyncio.sleep(CLEAN_UP_INTERVAL)

    async def _follow(self, connection: Connection, reset_backoff: Callable[[], None]) -> None:
        channel = await open_channel(connection, confirms=False)
        channel_ended = end_event(channel)
        try:
            await channel.basic_qos(prefetch_count=BATCH)
            self._deliveries = asyncio.Queue()
            deliveries = self._deliveries
            await channel.consume(
                DEAD_LOG_QUEUE,
                "dead letter index",
                lambda message: deliveries.put_nowait(
                    Delivery.from_incoming(message, DEAD_LOG_QUEUE, channel)
                ),
            )
            while (first := await run_until_event(channel_ended, deliveries.get())) is not None:
                batch = [QueuedDeadLetter.from_delivery(first)]
                while not deliveries.empty() and len(batch) < BATCH:
                    batch.append(QueuedDeadLetter.from_delivery(deliveries.get_nowait()))
                await _index_batch(batch, self._ledger, self._registry)
                reset_backoff()  # only after a write: without a ledger, pauses must grow
            reset_backoff()
        finally:
            await close_quietly(channel)


def _headers(letter: QueuedDeadLetter) -> dict[str, Any]:
    """Return the headers of a letter; those of its DeadLetterInfo if its properties can't be
    read."""
    headers = letter.info.headers() if letter.delivery.unreadable else letter.delivery.headers
    return {key: _to_json_value(value) for key, value in headers.items()}


def _to_json_value(value: object) -> object:
    """Return a header's value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): _to_json_value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_to_json_value(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no such number, and the API would fail with the letter
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)
