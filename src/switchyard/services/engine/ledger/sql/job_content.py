"""Content of a job in the ledger: its type and payload, and what redrives made of them.

Anybody who may publish can send a message with the id of a known job and other content.
`copy_validation` finds these, and corrects the metadata of the other messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sqlalchemy import Connection, text

from switchyard.broker.errors import MalformedMessage
from switchyard.broker.message import JobMessage
from switchyard.broker.times import to_datetime
from switchyard.services.engine.ledger.sql.codec import clean, to_json
from switchyard.services.engine.ledger.sql.dialect import keys_condition, keys_parameter
from switchyard.services.engine.records.states import State


@dataclass(frozen=True, slots=True)
class JobContent:
    """A job's type and payload."""

    job_type: str
    payload: str
    """JSON, as written by `codec.to_json`."""

    @classmethod
    def from_message(cls, message: JobMessage) -> JobContent:
        """Return the type and payload of a message. Raises RowRejected for a payload that JSON
        can't express."""
        return cls(message.job_type, to_json(message.payload))

    def is_same(self, other: JobContent) -> bool:
        """Tell whether both are the same, whatever the order of their fields."""
        if self == other:  # nearly always: then nothing is parsed
            return True
        return self.job_type == other.job_type and _parse(self.payload) == _parse(other.payload)


@dataclass(frozen=True, slots=True)
class EditedContent:
    """Content that a redrive gave to a job: recorded before its copy is sent."""

    redrives: int
    """The copy's number of redrives."""
    before: JobContent | None
    after: JobContent | None
    undone: bool


@dataclass(frozen=True, slots=True)
class RecordedMetadata:
    """Metadata of a job that both its record and its messages have."""

    priority: int
    source: str
    parent_id: str | None
    pipeline: str | None
    operation_id: str | None
    max_attempts: int
    expires_at: float | None
    queued_at: float | None
    """Changes with each retry, without a change of the record."""

    def matches(self, message: JobMessage) -> bool:
        """Tell whether a message has the same metadata, without `queued_at`."""
        metadata = message.metadata
        expires_at = None if metadata.expires_at is None else metadata.expires_at.timestamp()
        return (
            (self.priority, self.max_attempts, self.expires_at, self.parent_id)
            == (message.priority, metadata.max_attempts, expires_at, metadata.parent_id)
            and (self.pipeline, self.operation_id) == (metadata.pipeline, metadata.operation_id)
            and (self.source == metadata.source or self.source == clean(metadata.source))
        )

    def as_metadata(self) -> dict[str, Any]:
        """Return these as fields of a message's metadata."""
        expires_at = None if self.expires_at is None else to_datetime(self.expires_at)
        return {
            "source": self.source,
            "parent_id": self.parent_id,
            "pipeline": self.pipeline,
            "operation_id": self.operation_id,
            "max_attempts": self.max_attempts,
            "expires_at": expires_at,
        }


METADATA_COLUMNS: Final = tuple(each.name for each in fields(RecordedMetadata))
"""Columns of a job's row that make a `RecordedMetadata`, in the order of its fields."""


@dataclass(slots=True)
class ContentHistory:
    """All contents that one job has had, to tell its messages from others that carry its id."""

    recorded: JobContent
    edits: list[EditedContent] = field(default_factory=list)
    """Loaded only where a message is in doubt."""
    planned: set[int] = field(default_factory=set)
    """Redrives that were noted before their copies were sent; loaded likewise."""
    redrives: int = 0
    state: State = State.QUEUED
    run_at: float | None = None
    routing_key: str = ""
    is_ours: bool = True
    """False where the record was made of a message that this system did not publish."""
    metadata: RecordedMetadata | None = None
    """Recorded metadata; None for letters, which are only compared by content."""

    def all_contents(self) -> list[JobContent]:
        contents = (content for edit in self.edits for content in (edit.before, edit.after))
        return [self.recorded, *(content for content in contents if content is not None)]

    def is_edit(self, content: JobContent, redrives: int) -> bool:
        """Tell whether the redrive of that number has edited the job to that content."""
        return any(
            edit.redrives == redrives
            and not edit.undone
            and edit.after is not None
            and content.is_same(edit.after)
            for edit in self.edits
        )


def load_recorded(
    connection: Connection, dialect: str, ids: Sequence[str]
) -> dict[str, ContentHistory]:
    """Return the recorded contents of those jobs that the ledger has, without edits."""
    query = text(
        "SELECT id, job_type, payload, redrives, state, run_at, queued_at, routing_key FROM jobs "
        f"WHERE {keys_condition(dialect, 'id')}"
    )
    rows = connection.execute(query, keys_parameter(dialect, ids))
    return {
        row.id: ContentHistory(
            JobContent(row.job_type, row.payload),
            redrives=row.redrives,
            state=State(row.state),
            run_at=row.run_at,
            routing_key=row.routing_key,
            is_ours=row.queued_at is not None,
        )
        for row in rows
    }


def load_edits(
    connection: Connection,
    dialect: str,
    histories: Mapping[str, ContentHistory],
    ids: Iterable[str],
) -> None:
    """Add the edits of redrives, and the planned redrives, to the histories of these jobs."""
    sorted_ids = sorted(set(ids))
    if not sorted_ids:
        return
    query = text(
        "SELECT letter_id, redrives, original, edited, undone_at FROM letter_edits "
        f"WHERE {keys_condition(dialect, 'letter_id')}"
    )
    for row in connection.execute(query, keys_parameter(dialect, sorted_ids)):
        edit = EditedContent(
            row.redrives + 1,
            _content_of(row.original),
            _content_of(row.edited),
            row.undone_at is not None,
        )
        histories[row.letter_id].edits.append(edit)
    query = text(
        "SELECT letter_id, redrives FROM redriven_letters "
        f"WHERE {keys_condition(dialect, 'letter_id')}"
    )
    for row in connection.execute(query, keys_parameter(dialect, sorted_ids)):
        histories[row.letter_id].planned.add(row.redrives)


def _content_of(body: bytes) -> JobContent | None:
    try:
        return JobContent.from_message(JobMessage.decode(body))
    except MalformedMessage:
        return None


def _parse(payload: str) -> Any:
    # A message has null in the place of NaN and infinity.
    return json.loads(payload, parse_constant=lambda _: None)
