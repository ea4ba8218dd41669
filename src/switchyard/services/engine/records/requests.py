"""Arguments of the ledger's methods. All times are seconds since the epoch, as floats."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from switchyard.broker import patterns
from switchyard.broker.message import JobMessage
from switchyard.broker.times import format_local
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.states import ENDINGS, AttemptOutcome, State

MAX_DELAY = 366 * 24 * 3600
"""Seconds by which a job can be delayed, at most."""
MAX_NOTIFY_URL = 2_000
"""Characters."""
MAX_SOURCE = 2_000
"""Bytes of a document's source in UTF-8, and so characters at most: an index of PostgreSQL takes
2,704 bytes."""


_NAMESPACED_KEY = re.compile(r"(?:api|webhook):[!-~]{1,100} ")


def namespaced_key(namespace: str, key: str) -> str:
    """Return an idempotency key as the ledger stores it within a namespace: `api:KEY_ID` or
    `webhook:SOURCE`. Keys of different namespaces never collide: a key from HTTP has no blank, and
    programs may not use this form (`is_namespaced`)."""
    return f"{namespace} {key}"


def is_namespaced(key: str) -> bool:
    """Return whether a key has the form that `namespaced_key` makes."""
    return _NAMESPACED_KEY.match(key) is not None


def plain_key(key: str) -> str:
    """Return a key without its namespace, as its owner wrote it."""
    return _NAMESPACED_KEY.sub("", key, count=1)


def checked_source(source: str) -> str:
    """Check a source and return it unchanged. Raises ValueError for one that is too long for the
    index of documents."""
    if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE:
        raise ValueError(f"source has more than {MAX_SOURCE:,} bytes")
    return source


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be recorded before it is published."""

    message: JobMessage
    lane: str
    worker: str
    """The kind of worker that takes it."""
    routing_key: str
    run_at: float | None = None
    """Earliest start: until then the job is `scheduled` and not `pending`."""
    idempotency_key: str | None = None
    """Jobs with the same key are the same job; see `IdempotencyConflict`."""
    join_id: str | None = None
    """The job that waits for this one."""
    joins: Joining | None = None
    """Set where the job waits for other jobs, whose `join_id` is its id: it is not published before
    they end."""
    notice: NewJob | None = None
    """The job that sends a notice when this one and all jobs that follow from it have ended. Both
    are recorded in one transaction."""
    now: float = field(default_factory=time.time)

    def shifted(self, seconds: float) -> NewJob:
        """Return the job with all times moved by `seconds`: from this host's clock to the
        ledger's."""
        if not seconds:
            return self
        metadata, by = self.message.metadata, timedelta(seconds=seconds)
        times = {"created_at": metadata.created_at + by}
        if metadata.queued_at is not None:
            times["queued_at"] = metadata.queued_at + by
        return replace(
            self,
            message=self.message.with_metadata(**times),
            run_at=None if self.run_at is None else self.run_at + seconds,
            now=self.now + seconds,
            notice=None if self.notice is None else self.notice.shifted(seconds),
        )


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request to run the job of a delivery."""

    message: JobMessage
    lane: str
    worker: str
    routing_key: str
    worker_id: str
    claim_id: str
    """The fencing token, new for every delivery. A repeated request has the same id."""
    now: float
    takeover_from: str | None = None
    """Claim of a dead worker to take over, from `HeldByWorker`; refused if the job has another
    claim by then."""
    defers_suspects: bool = False
    """Whether a job whose worker died while it ran is not claimed: the answer is then `Suspect`."""


@dataclass(frozen=True, slots=True)
class FinishRequest:
    """A request to record the end of an attempt. Raises ValueError for a state in which no attempt
    ends."""

    job_id: str
    claim_id: str
    state: State
    """succeeded, retrying, queued (snoozed or released), dead or cancelled."""
    attempts: int
    """Attempts used, including this one if it counts."""
    now: float
    result: Mapping[str, Any] | None = None
    """JSON."""
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    outcome: AttemptOutcome | None = None
    """Entry for the attempt in the job's timeline; None writes none (it just succeeded)."""

    def __post_init__(self) -> None:
        if self.state not in ENDINGS:
            raise ValueError(f"an attempt can't end as {self.state!r}")


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A letter that was seen in `jobs.dead`."""

    id: str
    """The job's id, or `raw-<sha256[:24] of the body>` for a body without one."""
    job_id: str | None
    reason: str
    """exhausted, expired, overflowed, unroutable, malformed, invalid_payload,
    permanent, crashed, …"""
    dead_at: float
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    """AMQP headers, as JSON."""
    job_type: str | None = None
    lane: str | None = None
    routing_key: str | None = None
    worker: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    redrives: int = 0
    attempts: int = 0
    """With `redrives`, the letter's generation: an older letter does not mark a newer copy dead."""
    copies: int = 1
    """Messages in `jobs.dead` that are this letter."""
    fingerprint: str | None = None
    """Id of the group of letters with the same cause of death."""
    job: NewJob | None = None
    """The job, for a record if it has none, as it was published without the ledger and died before
    it was claimed."""


@dataclass(frozen=True, slots=True)
class FoundLetter:
    """A message in the dead letters that carries the id of a job."""

    message: JobMessage
    is_ours: bool
    """Whether this system has written the letter; otherwise the broker has dead-lettered a
    published message."""
    has_own_expiry: bool = False
    """Whether the message had a time limit for the broker, which this system never sets."""
    unroutable_as: str | None = None
    """The routing key for which there was no queue."""


def parse_tag(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()):
        raise ValueError("write a tag as NAME=VALUE, such as team=search")
    return name.strip(), value.strip()


MAX_PAYLOAD_PATH = 300
"""Characters."""
_PAYLOAD_PATH = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64}){0,9}")


@dataclass(frozen=True, slots=True)
class PayloadField:
    """A condition on a field of a payload: its path and value. Raises ValueError for an invalid
    path."""

    path: str
    """Names of objects' keys, and places in lists, with dots: `document.id`, `ids.0`."""
    value: str
    """Value as text; a number or boolean as JSON writes it."""

    def __post_init__(self) -> None:
        if len(self.path) > MAX_PAYLOAD_PATH or not _PAYLOAD_PATH.fullmatch(self.path):
            raise ValueError(
                "a payload's field is named by keys with dots, of letters, digits, _ and -, "
                "such as document.id or ids.0"
            )

    @classmethod
    def parse(cls, text: str) -> PayloadField:
        """Read `PATH=VALUE`. Raises ValueError."""
        path, equals, value = text.partition("=")
        if not equals:
            raise ValueError("write the payload's field as PATH=VALUE, such as document.id=42")
        return cls(path.strip(), value)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the path."""
        return tuple(self.path.split("."))


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs that match every field that is set."""

    ids: tuple[str, ...] = ()
    """Only these ids; empty: all."""
    state: State | None = None
    lane: str | None = None
    job_type: str | None = None
    worker: str | None = None
    source: str | None = None
    parent_id: str | None = None
    pipeline: str | None = None
    """The first job of a run, or any that followed from it."""
    operation_id: str | None = None
    """The backfill or rerun that has published it, or a job that it followed from."""
    acted_by: str | None = None
    """The bulk action that has cancelled, rerun or moved it."""
    since: float | None = None
    """Created at this time or later."""
    until: float | None = None
    """Created before this time."""
    finished_since: float | None = None
    """Ended at this time or later."""
    finished_until: float | None = None
    """Ended before this time."""
    slower_than: float | None = None
    """Seconds; the last attempt took longer, or has run for longer."""
    error: str | None = None
    """Text within the error's type, message or reason; case is ignored."""
    payload: PayloadField | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Each of these, with this value."""

    @property
    def is_empty(self) -> bool:
        return self == JobFilter()

    @property
    def is_indexed(self) -> bool:
        """Whether an index finds the matching jobs among all others."""
        found = ("ids", "parent_id", "pipeline", "operation_id", "acted_by", "tags")
        return any(getattr(self, name) for name in found)

    @property
    def is_scan(self) -> bool:
        """Whether each job has to be read to know if it matches: if such jobs are rare, all jobs
        are read, or all of the filter's state."""
        without_index = ("job_type", "worker", "source", "error", "payload")
        times = ("finished_since", "finished_until", "slower_than")
        is_read = any(getattr(self, name) is not None for name in (*without_index, *times))
        return is_read and not self.is_indexed

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = asdict(self)
        values["ids"], values["tags"] = list(self.ids), dict(self.tags)
        if self.payload is not None:
            values["payload"] = f"{self.payload.path}={self.payload.value}"
        return {name: value for name, value in values.items() if value not in (None, [], {})}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobFilter:
        """Read what `to_json` has written. Raises ValueError."""
        read = dict(values)
        read["ids"] = tuple(values.get("ids", ()))
        if "state" in values:
            read["state"] = State(values["state"])
        if "payload" in values:
            read["payload"] = PayloadField.parse(values["payload"])
        return cls(**read)

    def describe(self) -> str:
        """Describe the filter in a line: `type ingest_document, source arxiv`."""
        words = []
        for name, value in self.to_json().items():
            if name == "ids":
                words.append(value[0] if len(value) == 1 else f"{len(value):,} ids")
            elif name == "tags":
                words += [f"tag {tag}={each}" for tag, each in value.items()]
            elif name in _MOMENTS:
                words.append(f"{_WORDS[name]} {format_local(value)}")
            else:
                unit = " s" if name == "slower_than" else ""
                words.append(f"{_WORDS.get(name, name)} {value}{unit}")
        return ", ".join(words) or "all jobs"


_MOMENTS = frozenset({"since", "until", "finished_since", "finished_until"})
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "job_type": "type",
        "worker": "worker kind",
        "parent_id": "following from",
        "pipeline": "of run",
        "operation_id": "published by",
        "acted_by": "changed by",
        "since": "made since",
        "until": "made before",
        "finished_since": "ended since",
        "finished_until": "ended before",
        "slower_than": "slower than",
        "error": "error with",
        "payload": "payload",
    }
)


@dataclass(frozen=True, slots=True)
class LetterFields:
    """Fields by which dead letters are selected; None matches all. Values of a filter from outside
    are checked (`LetterFilter`) by the annotations here."""

    ids: Annotated[
        frozenset[Annotated[str, Field(pattern=patterns.JOB_ID)]], Field(max_length=10_000)
    ] = frozenset()
    """Only these, where there are any."""
    job_type: Annotated[str | None, Field(pattern=patterns.NAME)] = None
    lane: Annotated[str | None, Field(pattern=patterns.NAME)] = None
    reason: Annotated[str | None, Field(pattern=patterns.NAME)] = None
    error_type: Annotated[str | None, Field(pattern=patterns.PLAIN, max_length=200)] = None
    group: Annotated[str | None, Field(pattern=patterns.GROUP_ID)] = None
    """A group's id, or its beginning: see `Cause.fingerprint`."""
    operation: Annotated[
        str | None,
        Field(
            pattern=patterns.PLAIN,
            max_length=100,
            description="Id of a backfill: its jobs and their follow-up jobs.",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter(LetterFields):
    """Selects dead letters in the index."""

    state: str | None = None
    since: float | None = None
    """Died at this time or later."""
    until: float | None = None
    """Died at this time or earlier."""


@dataclass(frozen=True, slots=True)
class RedrivenCopy:
    """A dead letter's copy that the broker has confirmed."""

    letter_id: str
    redrives: int
    """Number of this redrive of the letter."""
    changed: NewJob | None = None
    """The changed job, where the redrive changes it."""


@dataclass(frozen=True, slots=True)
class LeftoverLetter:
    """A letter that no longer waits, but whose messages are still in `jobs.dead`."""

    letter_id: str
    redrives: int
    """Redrives of the letter."""
    copies: int
    """Messages that are still to be removed from the queue."""


@dataclass(frozen=True, slots=True)
class LetterEdit:
    """A change that a redrive makes to a letter: the letter before and after it."""

    letter_id: str
    redrives: int
    """Redrives of the letter; the copy has one more."""
    operation_id: str
    routing_key: str
    """Routing key of the copy."""
    edited_by: str
    edited_at: float
    headers: Mapping[str, Any]
    """The letter's, as JSON."""
    original: bytes
    edited: bytes
    undone_at: float | None = None
    """When the change was taken back, before the job ran."""
    restored_at: float | None = None
    """When the original was in `jobs.dead` again."""


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """Selects documents that match every field that is set."""

    state: str | None = None
    source_prefix: str | None = None
    classes: tuple[str, ...] = ()
    """Classes, each `kind:label`: of several labels of one kind any must match, of several kinds
    each."""
    media_type: str | None = None
    since: float | None = None
    """Made at this time or later, in seconds since the epoch."""
    until: float | None = None
    """Made before this time."""
