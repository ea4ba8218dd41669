"""Dead letters: why a message is in `jobs.dead`, as headers that any tool can read.

Whoever gives a job up publishes its body unchanged with these headers. A message that the broker
itself dead-letters (age, overflow, no route) carries only `x-death`, or nothing: `read` infers the
reason from that.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from switchyard.broker.errors import ForeignCopy, MalformedMessage
from switchyard.broker.lanes import lane_of
from switchyard.broker.message import JobMessage, now
from switchyard.broker.wording import writable

if TYPE_CHECKING:  # with it comes aiormq, which commands would wait for
    from switchyard.broker.consume.delivery import Delivery

MESSAGE_LIMIT, TRACEBACK_LIMIT = 2_000, 12_000
"""Characters kept of an error's message and traceback: all headers must fit into one frame."""
BRIEF_LIMIT, BRIEF_PROPERTIES = 200, 1024
"""Characters kept of a message, and of properties, where all headers would not fit into a frame."""
PROPERTIES_LIMIT = 64 * 1024
"""Bytes kept of properties that can't be read: all headers must fit into one frame."""
UNREADABLE = "UnreadableProperties"
"""The error type of a message whose properties could not be read."""
BROKER = "Broker"
"""The error type of a message that the broker itself has dead-lettered."""
UNBOUND = "Unbound"
"""The error type of a recorded job whose routing key had no queue; it goes back to its lane."""
FOREIGN = ForeignCopy.__name__
"""The error type of a message with the id of another job."""
MAX_ATTEMPTS = 1_000_000
"""Largest number of attempts that the headers can state."""
MAX_NAME_LENGTH = 255
"""Bytes of a routing key, as AMQP has it."""
PROPERTIES_HEADER = "x-dead-properties"
"""The header that keeps properties that can't be read."""
_PREFIX = "x-dead-"
_TEXTS = {
    "error_type": MAX_NAME_LENGTH,
    "message": MESSAGE_LIMIT,
    "traceback": TRACEBACK_LIMIT,
    "worker": MAX_NAME_LENGTH,
}
"""Characters kept of fields with foreign text; the others have come over AMQP, or are ours."""


class Reason(StrEnum):
    """Why a job was given up. A closed set."""

    EXHAUSTED = "exhausted"
    """Every attempt failed."""
    PERMANENT = "permanent"
    """The handler said that no further attempt can help."""
    EXPIRED = "expired"
    """The job waited longer than its lane's TTL or its own `expires_at`."""
    OVERFLOWED = "overflowed"
    """Its lane was full."""
    DISPLACED = "displaced"
    """The broker had accepted it, and it is not in its lane: a classic queue with more than its
    length threw it out when the broker restarted, or no queue was bound to its key yet. Not the
    job's fault: it goes back by itself."""
    UNROUTABLE = "unroutable"
    """No queue is bound for its routing key."""
    REFUSED = "refused"
    """The broker never takes its message, which is too large for it or can't be put into AMQP. So
    its dead letter is in the ledger alone."""
    MALFORMED = "malformed"
    """No job: no JSON, not the message's schema, properties that can't be read, or the id of
    another job."""
    INVALID_PAYLOAD = "invalid_payload"
    """A job whose payload does not fit its type as the worker knows it. It may be a good one: a
    worker that is older than the publisher says the same."""
    CRASHED = "crashed"
    """The job killed its own process twice, or was in five workers as they died, or was begun 20
    times in a row without an end."""


@dataclass(frozen=True, slots=True)
class DeadLetterInfo:
    """Information about a dead letter: why, where and when its job died."""

    reason: Reason
    routing_key: str
    """Routing key of the job's first publish, `<lane>.<job_type>`: a redrive goes there."""
    queue: str = ""
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    attempts: int = 0
    """Attempts that were used up, this one included."""
    worker: str = ""
    dead_at: str = field(default_factory=lambda: now().isoformat())
    """ISO 8601, UTC."""
    properties: str = ""
    """The AMQP properties of a message where they could not be read: as they came, flags first, the
    first 64 KiB, as base64."""

    @property
    def is_foreign(self) -> bool:
        """Whether it died as a foreign copy. A handler may raise an error of that name as well."""
        return self.reason is Reason.MALFORMED and self.error_type == FOREIGN

    def headers(self) -> dict[str, Any]:
        """Return the AMQP headers `x-dead-reason`, `x-dead-error-type`, …"""
        values = asdict(self)
        for name, limit in _TEXTS.items():
            values[name] = writable(values[name], limit, keep_end=name == "traceback")
        values["reason"] = str(self.reason)
        if not self.properties:
            del values["properties"]
        return {_PREFIX + name.replace("_", "-"): value for name, value in values.items()}

    def shortened(self) -> Iterator[DeadLetterInfo]:
        """Yield copies with less text, each with less than the one before: for a broker whose
        frames are too small for all headers."""
        properties = self.properties[:BRIEF_PROPERTIES]
        brief = replace(
            self, message=writable(self.message, BRIEF_LIMIT), traceback="", properties=properties
        )
        yield brief
        yield replace(brief, message="", worker="", properties=properties[:4])


def unreadable_properties(delivery: Delivery, *, worker: str = "") -> DeadLetterInfo:
    """Return the information about a message whose properties can't be read."""
    properties = delivery.properties[:PROPERTIES_LIMIT]
    return DeadLetterInfo(
        Reason.MALFORMED,
        delivery.routing_key,
        queue=delivery.queue,
        error_type=UNREADABLE,
        message=f"the AMQP properties can't be read: {delivery.unreadable}",
        worker=worker,
        properties=base64.b64encode(properties).decode(),
    )


def job_in(info: DeadLetterInfo, body: bytes) -> JobMessage | None:
    """Return the job of a dead letter; None when the letter is no job.

    A message whose properties could not be read is no job, whatever its body says: this system has
    not written it, and it must not stand for the job whose id it carries. Nor is a foreign copy.
    """
    return None if _is_no_job(info) else _decode(body)


def _is_no_job(info: DeadLetterInfo) -> bool:
    return bool(info.properties) or info.is_foreign


def examine(
    headers: Mapping[str, Any], routing_key: str, body: bytes
) -> tuple[DeadLetterInfo, JobMessage | None]:
    """Return the information about a message in `jobs.dead`, whoever put it there, and its job;
    None if it has none, as in `job_in`. `routing_key` is the one that it was delivered with."""
    message = _decode(body)
    info = read_dead_letter_info(
        headers, routing_key, message.job_type if message is not None else None
    )
    return info, None if _is_no_job(info) else message


def read_dead_letter_info(
    headers: Mapping[str, Any], routing_key: str, job_type: str | None
) -> DeadLetterInfo:
    """Read the information about a dead letter from its headers.

    `job_type` is the one in the body; None where the body is no job. A retried job comes to its
    lane under its queue's name, so the broker's record of its death names no routing key of a job.
    """
    if is_certified(headers):
        values: dict[str, Any] = {"routing_key": routing_key}
        for name in DeadLetterInfo.__dataclass_fields__:
            value = headers.get(_PREFIX + name.replace("_", "-"))
            # Anybody may publish here: a value of another type is ignored.
            if isinstance(value, int if name == "attempts" else str):
                values[name] = value
        if not 0 <= values.get("attempts", 0) <= MAX_ATTEMPTS:
            del values["attempts"]
        values["routing_key"] = _key(values["routing_key"], routing_key)
        reason = _reason(values.get("reason"))
        if reason is Reason.DISPLACED:  # never written by us: only the broker displaces a job
            reason = Reason.OVERFLOWED
        return DeadLetterInfo(**{**values, "reason": reason})
    last = _last_death(headers)
    if last is None:
        return DeadLetterInfo(Reason.UNROUTABLE, routing_key, message="no queue took this key")
    queue = _text(last.get("queue", ""))
    keys = last.get("routing-keys")
    original = routing_key
    if isinstance(keys, list) and keys:
        original = _key(_text(keys[0]), routing_key)
    if job_type is not None and original == queue:
        original = f"{lane_of(queue)}.{job_type}"
    died_at = last.get("time")
    reason = {"expired": Reason.EXPIRED, "maxlen": Reason.OVERFLOWED}.get(
        str(last.get("reason")), Reason.EXHAUSTED
    )
    return DeadLetterInfo(
        reason,
        original,
        queue=queue,
        error_type=BROKER,
        message=f"dead-lettered by the broker: {last.get('reason')}",
        dead_at=(died_at if isinstance(died_at, datetime) else now()).isoformat(),
    )


def is_certified(headers: Mapping[str, Any]) -> bool:
    """Tell whether our dead-letter headers are present and genuine. A job has none in its lane: if
    the broker dead-lettered the message itself (x-death), its publisher has forged them."""
    return _PREFIX + "reason" in headers and _last_death(headers) is None


def had_own_expiry(headers: Mapping[str, Any]) -> bool:
    """Tell whether the broker has dead-lettered the message by a time limit of its own."""
    last = _last_death(headers)
    return last is not None and "original-expiration" in last


def _last_death(headers: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the broker's record of the message's last death; None where it dead-lettered none."""
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], Mapping):
        return None
    last: Mapping[str, Any] = deaths[0]
    return last


def _decode(body: bytes) -> JobMessage | None:
    try:
        return JobMessage.decode(body)
    except MalformedMessage:
        return None


def letter_id(job_id: str | None, body: bytes) -> str:
    """Return the id of a dead letter: the job's id, or `raw-…` of the body where there is none."""
    return job_id or f"raw-{sha256(body).hexdigest()[:24]}"


def _key(text: str, otherwise: str) -> str:
    """Return the text where it is short enough for a routing key, else `otherwise`."""
    return text if len(text.encode()) <= MAX_NAME_LENGTH else otherwise


def _text(value: object) -> str:
    """Return a header's value as text: another program may have written it as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else str(value)


def _reason(text: object) -> Reason:
    try:
        return Reason(str(text))
    except ValueError:
        return Reason.EXHAUSTED
