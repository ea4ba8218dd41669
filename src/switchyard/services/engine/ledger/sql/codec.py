"""Convert between a job message and the columns of its row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from pydantic_core import to_json as to_utf8
from pydantic_core import to_jsonable_python

from switchyard.broker.message import STORED, JobMessage, may_be_unreadable
from switchyard.broker.wording import writable
from switchyard.services.engine.records.errors import RowRejected
from switchyard.services.engine.records.requests import ClaimRequest, NewJob
from switchyard.services.engine.records.results import JobRecord

TEXT_LIMIT = 8_000
"""Characters of an error message that are kept."""

# ASCII only: `\u0000` and lone surrogates stay escaped, and any database can hold the text.
_encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode

_ENCODING_ERRORS = (TypeError, ValueError, RecursionError)
"""Errors of an encoder for a value that JSON can't express."""
_FIELDS_WITH_COLUMNS = {"job_id", "job_type", "priority", "payload"}
"""Fields of a message that have a column of their own."""


def to_json(value: Any) -> str:
    """Return a value as JSON in ASCII. Raises RowRejected for values that JSON can't express or
    that could not be parsed again."""
    must_check = False
    try:
        encoded = to_utf8(value)  # five times as fast, and nearly always ASCII
        if encoded.isascii() and not may_be_unreadable(encoded):
            return encoded.decode()
    except _ENCODING_ERRORS:
        must_check = True  # the fast encoder refuses lone surrogates and deep nesting
    try:
        text = _encode(value)  # refuses numbers that are too long
        if must_check:
            to_jsonable_python(json.loads(text))  # refuses nesting that no reader could show
        return text
    except _ENCODING_ERRORS as error:
        raise RowRejected(f"not to be written as JSON: {error}") from error


def clean(text: str | None) -> str | None:
    """Return free text in a form that every database takes: NUL and lone surrogates are escaped,
    and it is cut to TEXT_LIMIT."""
    return None if text is None else writable(text, TEXT_LIMIT)


def fingerprint(job_type: str, payload_json: str) -> str:
    """Return a hash of job type and payload; it does not depend on the order of the payload's
    fields."""
    ordered = json.dumps(json.loads(payload_json), sort_keys=True)
    return sha256(f"{job_type}\n{ordered}".encode()).hexdigest()


def message_columns(message: JobMessage) -> dict[str, Any]:
    """Return the columns that follow from the message alone.

    Raises RowRejected for a payload that JSON can't express.
    """
    metadata = message.metadata
    return {
        "id": message.job_id,
        "job_type": message.job_type,
        "priority": message.priority,
        "source": clean(metadata.source),
        "parent_id": metadata.parent_id,
        "pipeline": metadata.pipeline,
        "operation_id": metadata.operation_id,
        "attempts": metadata.attempts,
        "max_attempts": metadata.max_attempts,
        "redrives": metadata.redrives,
        "created_at": metadata.created_at.timestamp(),
        "queued_at": metadata.queued_at.timestamp() if metadata.queued_at else None,
        "expires_at": metadata.expires_at.timestamp() if metadata.expires_at else None,
        "tags": metadata.tags,
        "metadata": _other_fields_json(message),
        "payload": to_json(message.payload),
    }


def _other_fields_json(message: JobMessage) -> str:
    """Return the fields of a message that have no column, as JSON, ASCII. Raises RowRejected."""
    try:
        encoded = message.model_dump_json(exclude=_FIELDS_WITH_COLUMNS)
        return encoded if encoded.isascii() else to_json(json.loads(encoded))
    except _ENCODING_ERRORS:
        return to_json(message.model_dump(exclude=_FIELDS_WITH_COLUMNS))


def to_message(record: JobRecord) -> JobMessage:
    """Return the job's message as it was recorded, with the latest generation that the ledger has
    seen."""
    metadata: Mapping[str, Any] = record.envelope["metadata"]
    return JobMessage.model_validate(
        {
            "job_id": record.id,
            "job_type": record.job_type,
            "priority": record.priority,
            "payload": record.payload,
            **record.envelope,
            "metadata": {
                **metadata,
                "attempts": record.attempts,
                "redrives": record.redrives,
            },
        },
        context=STORED,
    )


def job_columns(job: NewJob | ClaimRequest) -> dict[str, Any]:
    """Return the columns of a new row."""
    return {
        **message_columns(job.message),
        "lane": clean(job.lane),
        "worker": clean(job.worker),
        "routing_key": clean(job.routing_key),
        "updated_at": job.now,
    }
