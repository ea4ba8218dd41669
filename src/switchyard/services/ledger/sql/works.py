"""What a job is, as the ledger knows it: its type and its payload, and what redrives made of these.

Anybody who may publish can send a message with the id of a job that is known and other work in it.
`rules.is_foreign` says which messages these are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from switchyard.broker.errors import MalformedMessage
from switchyard.broker.message import JobMessage
from switchyard.services.ledger.sql.codec import to_json
from switchyard.services.ledger.sql.dialect import keys_condition, keys_parameter


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done."""

    job_type: str
    payload: str
    """JSON, as `codec.to_json` writes it."""

    @classmethod
    def of(cls, message: JobMessage) -> Work:
        """Raises RowRejected for a payload that JSON can't say."""
        return cls(message.job_type, to_json(message.payload))

    def is_same(self, other: Work) -> bool:
        """Whether both ask for the same, in whatever order their fields are."""
        if self == other:  # nearly always: then nothing is parsed
            return True
        return self.job_type == other.job_type and _parsed(self.payload) == _parsed(other.payload)


@dataclass(frozen=True, slots=True)
class EditedWork:
    """What a redrive has made of a job: noted before its copy is sent."""

    redrives: int
    """Those of the copy."""
    before: Work | None
    after: Work | None
    undone: bool


@dataclass(slots=True)
class KnownWorks:
    """What the ledger knows of the work of one job."""

    recorded: Work
    edits: list[EditedWork] = field(default_factory=list)
    """Loaded only where a message is in doubt."""

    def all(self) -> list[Work]:
        found = (work for edit in self.edits for work in (edit.before, edit.after))
        return [self.recorded, *(work for work in found if work is not None)]

    def is_edit(self, work: Work, redrives: int) -> bool:
        """Whether a redrive has made that work in the copy of that number."""
        return any(
            edit.redrives == redrives
            and not edit.undone
            and edit.after is not None
            and work.is_same(edit.after)
            for edit in self.edits
        )


def load_works(connection: Connection, dialect: str, ids: Sequence[str]) -> dict[str, KnownWorks]:
    """What is recorded of those jobs that are known, without edits."""
    query = text(f"SELECT id, job_type, payload FROM jobs WHERE {keys_condition(dialect, 'id')}")
    rows = connection.execute(query, keys_parameter(dialect, ids))
    return {row.id: KnownWorks(Work(row.job_type, row.payload)) for row in rows}


def load_edits(
    connection: Connection, dialect: str, works: Mapping[str, KnownWorks], ids: Iterable[str]
) -> None:
    """Add what redrives have made of these."""
    doubted = sorted(set(ids))
    if not doubted:
        return
    query = text(
        "SELECT letter_id, redrives, original, edited, undone_at FROM letter_edits "
        f"WHERE {keys_condition(dialect, 'letter_id')}"
    )
    for row in connection.execute(query, keys_parameter(dialect, doubted)):
        edit = EditedWork(
            row.redrives + 1, _work(row.original), _work(row.edited), row.undone_at is not None
        )
        works[row.letter_id].edits.append(edit)


def _work(body: bytes) -> Work | None:
    try:
        return Work.of(JobMessage.decode(body))
    except MalformedMessage:
        return None


def _parsed(payload: str) -> Any:
    # A message has null in the place of NaN and infinity.
    return json.loads(payload, parse_constant=lambda _: None)
