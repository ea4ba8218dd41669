"""Requests for jobs from outside, checked field by field, so that each complaint can name its
field; and the comparison of requests with the same idempotency key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

from switchyard.services.common.errors import InvalidInput
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    RemoteFieldForbidden,
    UnknownJobType,
)
from switchyard.services.engine.publishing.fairness import lower_priority
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.records.job_ids import JobIds
from switchyard.services.engine.records.requests import MAX_DELAY
from switchyard.services.engine.records.results import JobRecord

SAME_MOMENT = 2.0
"""Seconds by which times of equal requests may differ: each counts its delay from the moment at
which it was made."""

_NAMESPACE = uuid5(NAMESPACE_URL, "https://switchyard.invalid/requests")


RESERVED_SOURCES = re.compile(
    r"(api|webhook|crawl|schedule)([:/\s].*)?"
    r"|jobctl|user|python|search|demo|unknown"
    r"|arxiv|github|huggingface|file|documents",
    re.IGNORECASE,
)
"""Sources that clients may not use, as this system gives them to jobs itself: those of API keys,
webhooks, crawls and schedules, of programs and of backfills."""


@dataclass(frozen=True, slots=True)
class RequestFieldError:
    """An error in one field of a request."""

    at: tuple[str | int, ...]
    """Path of the field: names of fields and indexes of lists, from the outside in."""
    message: str


class InvalidRequest(InvalidInput):
    """The job can't be published as it was asked for."""

    def __init__(self, *complaints: RequestFieldError) -> None:
        self.complaints = complaints
        super().__init__("; ".join(each.message for each in complaints))


def check_source(source: str, own: str) -> None:
    """Refuse a job's source that belongs to this system or to another client. `own` is the source
    of the client's API key; the client may divide it further, as `own/nightly`. Raises
    InvalidRequest."""
    if source == own or source.startswith(f"{own}/"):
        return
    if RESERVED_SOURCES.fullmatch(source.strip()):
        text = f"source {source!r} is not yours: use {own}, {own}/NAME or another name"
        raise InvalidRequest(RequestFieldError(("source",), text))


def routing_key_of(routing_key: str | None, lane: str | None, job_type: str | None) -> str:
    """Return the routing key that is named by itself, or by a lane and a job type.

    Raises InvalidRequest.
    """
    if routing_key is not None:
        if lane is not None or job_type is not None:
            raise InvalidRequest(
                RequestFieldError(("routing_key",), "give either routing_key or lane and job_type")
            )
        return routing_key
    if lane is None or job_type is None:
        raise InvalidRequest(
            RequestFieldError(("routing_key",), "give routing_key, or lane and job_type")
        )
    return f"{lane}.{job_type}"


def invalid_request_from(
    error: InvalidJob | InvalidPayload | UnknownJobType, *, by_routing_key: bool
) -> InvalidRequest:
    """Return what `prepare` has found wrong with a job, with its places in the request. With
    `by_routing_key`, the request has the lane and the job type in its `routing_key`."""
    match error:
        case RemoteFieldForbidden():
            return InvalidRequest(
                *(
                    RequestFieldError(("payload", each.field), each.message)
                    for each in error.refused
                )
            )
        case InvalidPayload():
            return InvalidRequest(*_payload_complaints(error))
        case UnknownJobType():
            at: str | None = "job_type"
        case InvalidJob():
            at = error.at
    if by_routing_key and at in ("lane", "job_type"):
        at = "routing_key"
    return InvalidRequest(RequestFieldError(() if at is None else (at,), str(error)))


def _payload_complaints(error: InvalidPayload) -> Iterator[RequestFieldError]:
    if not error.faults:
        yield RequestFieldError(("payload",), str(error))
    for each in error.faults:
        yield RequestFieldError(("payload", *each.place), each.message)


def job_id_for(
    ids: JobIds, idempotency_key: str | None, job_type: str, payload: Mapping[str, Any]
) -> str:
    """Return the id of a job that is asked for: a new one, or one made of key, type and payload.

    So two requests for the same at the same time have one id, and are one job even where the
    broker refuses one of the publishes; and for another payload under the same key the ledger
    raises IdempotencyConflict.
    """
    if idempotency_key is None:
        return str(uuid4())
    content = json.dumps([job_type, payload], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(content.encode()).hexdigest()
    return ids.derive(_NAMESPACE, f"{idempotency_key}/{digest}")


def delay_until(run_at: datetime, now: datetime) -> float:
    """Return the seconds from now until then; 0 for a time that has passed. Raises InvalidRequest
    for one that is too far away."""
    delay = max(0.0, (run_at - now).total_seconds())
    if delay > MAX_DELAY:
        raise InvalidRequest(
            RequestFieldError(
                ("run_at",), f"a job can be put off by {MAX_DELAY // 86400} days at most"
            )
        )
    return delay


def differs(
    request: JobRequest, known: JobRecord, *, expires_in: float | None = None
) -> str | None:
    """Return the field in which a request with a known idempotency key asks for another job than
    the one that is there; None when it asks for the same. The ledger has already compared type and
    payload. `expires_in`: the request's own, in seconds; None where it gives none.
    """
    expires_at = None if request.expires_at is None else request.expires_at.timestamp()
    expiry_tolerance = 0.001
    if expires_in is not None:
        expires_at, expiry_tolerance = known.created_at + expires_in, SAME_MOMENT
    known_delay = known.run_at - known.created_at if known.run_at is not None else 0.0
    if request.routing_key != known.routing_key:
        return "routing_key"
    priority = request.priority
    if priority is not None and known.priority not in (priority, lower_priority(priority)):
        return "priority"
    if request.max_attempts is not None and request.max_attempts != known.max_attempts:
        return "max_attempts"
    if not _same(expires_at, known.expires_at, expiry_tolerance):
        return "expires_at"
    return None if abs(request.delay - known_delay) <= SAME_MOMENT else "delay"


def _same(first: float | None, other: float | None, tolerance: float) -> bool:
    if first is None or other is None:
        return first is other
    return abs(first - other) < tolerance
