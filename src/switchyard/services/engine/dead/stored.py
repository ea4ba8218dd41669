"""Read dead letters that only the ledger has, as the broker has lost them or they have expired
there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason, job_in
from switchyard.broker.message import JobMessage, now
from switchyard.broker.times import to_datetime
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.scan import BrokerLetterIds
from switchyard.services.engine.ledger import Ledger, to_message
from switchyard.services.engine.records.results import DeadLetter, JobRecord


@dataclass(frozen=True)
class StoredLetter:
    """A dead letter as the ledger has it."""

    id: str
    body: bytes
    info: DeadLetterInfo
    left_behind: int = 0
    """Messages of the letter that stay in `jobs.dead`, as it was read from the index."""

    @cached_property
    def message(self) -> JobMessage | None:
        return job_in(self.info, self.body)

    @property
    def redrives(self) -> int:
        return self.message.metadata.redrives if self.message else 0

    def ack(self) -> bool:
        """Do nothing: there is no delivery to acknowledge."""
        return True


def stored_letter(letter: DeadLetter) -> StoredLetter:
    """Return an indexed letter."""
    return StoredLetter(letter.id, letter.body, info_of(letter))


def info_of(letter: DeadLetter) -> DeadLetterInfo:
    """Return what an indexed letter tells of its death."""

    def header(name: str) -> str:
        value = letter.headers.get(f"x-dead-{name}")
        return value if isinstance(value, str) else ""

    return DeadLetterInfo(
        _reason(letter.reason),
        letter.routing_key or "",
        queue=header("queue"),
        error_type=letter.error_type or "",
        message=letter.error_message or "",
        traceback=letter.traceback or "",
        attempts=letter.attempts,
        worker=header("worker"),
        dead_at=to_datetime(letter.dead_at).isoformat(),
        properties=header("properties"),
    )


def letter_of_job(record: JobRecord) -> StoredLetter:
    """Make the letter of a dead job from the job's record alone."""
    dead_at = to_datetime(record.finished_at) if record.finished_at else now()
    info = DeadLetterInfo(
        _reason(record.reason),
        record.routing_key,
        error_type=record.error_type or "",
        message=record.error_message or "",
        attempts=record.attempts,
        worker=record.worker_id or "",
        dead_at=dead_at.isoformat(),
    )
    return StoredLetter(record.id, to_message(record).encode(), info)


async def stored_letters(
    ledger: Ledger,
    which: LetterFilter,
    moment: datetime,
    broker: BrokerLetterIds,
) -> AsyncGenerator[StoredLetter, None]:
    """Yield the matching letters that the broker does not have, oldest first; then letters that are
    made of dead jobs without a letter."""
    # Purged letters were removed on purpose: they are only taken by their ids.
    states = ("waiting", "dropped", "purged") if which.ids else ("waiting", "dropped")
    index_filter = which.for_index(None, moment)
    after: tuple[float, str] | None = None
    while page := await ledger.dead_letters.letters_in(index_filter, states=states, after=after):
        for letter in page:
            stored = stored_letter(letter)
            if broker.lacks(letter) and which.matches(stored, moment):
                yield stored
        after = (page[-1].dead_at, page[-1].id)
    last_id = ""
    while records := await ledger.redrives.dead_jobs_without_letter(after=last_id):
        for record in records:
            stored = letter_of_job(record)
            if broker.lacks(record) and which.matches(stored, moment):
                yield stored
        last_id = records[-1].id


def _reason(text: str | None) -> Reason:
    try:
        return Reason(text or "")
    except ValueError:
        return Reason.EXHAUSTED
