"""Publishes and their outcomes, the same for both publishers.

Both take `Outgoing` and give a `Result` for each; which errors there are, and what becomes of a job
whose lane is full, is decided here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.errors import (
    Blocked,
    BrokerUnavailable,
    LaneFull,
    MessageTooLarge,
    NeverTaken,
    NotPermitted,
    PublishError,
    Unroutable,
)
from switchyard.broker.lanes import LANES, lane_of
from switchyard.broker.message import MAX_BODY_BYTES, JobMessage
from switchyard.broker.settings import Profile
from switchyard.broker.wire.envelope import Envelope

BLOCKED_CONFIRM_TIMEOUT = 0.5
"""Seconds that a publish under way waits for its confirm on a connection that is blocked; also the
time between looks whether it is. The broker says that it blocks only when a message is published,
and holds that message until the alarm is over."""
SIZE_LIMIT_TTL = 60.0
"""Seconds for which a learned size limit holds: larger messages are refused unsent. Then one is
sent again: the limit may have been changed, or another node may be asked."""
OUTAGE_PAUSE = 1.0
"""Seconds after a failed connect in which the jobs of the same batch fail without another try."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The broker has confirmed the message: it is in its queue, on disk."""

    job_id: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A job message and where it goes."""

    message: JobMessage
    routing_key: str
    queue: str | None = None
    """The queue in which it must arrive. The asyncio publisher checks that it is there first."""


_LANE_NAMES = frozenset(lane.name for lane in LANES)

Result = Accepted | PublishError
"""How one publish of a batch ended: errors are returned, so that each job has its own."""


_OUTCOMES: tuple[tuple[type, str], ...] = (
    (Accepted, "accepted"),
    (LaneFull, "full"),
    (Unroutable, "unroutable"),
    (NeverTaken, "invalid"),
    (NotPermitted, "forbidden"),
    (Blocked, "blocked"),
    (BrokerUnavailable, "away"),
)


def outcome_name(result: Result) -> str:
    """Return the result's name, for counting: accepted, full, unroutable, invalid, forbidden,
    blocked, away, or refused, and no other."""
    return next((name for kind, name in _OUTCOMES if isinstance(result, kind)), "refused")


def counted_lane(routing_key: str) -> str:
    """Return the lane of that key, for counting: a known lane, or `other`."""
    lane = lane_of(routing_key)
    return lane if lane in _LANE_NAMES else "other"


def envelope_of(
    message: JobMessage, headers: dict[str, Any] | None = None, *, body: bytes | None = None
) -> Envelope:
    """Return the message as it travels: AMQP properties repeat what routing and tools need. `body`
    is its encoded form, where that is known. Raises NeverTaken for a job that can't be written as
    JSON."""
    try:
        encoded = message.encode() if body is None else body
    except ValueError as error:  # half of a surrogate pair; a value that JSON has no form for
        raise NeverTaken(f"the message can't be written as JSON: {error}") from error
    return Envelope(
        body=encoded,
        message_id=message.job_id,
        type=message.job_type,
        priority=message.delivery_priority,
        timestamp=max(int(message.metadata.created_at.timestamp()), 0),  # unsigned on the wire
        headers=headers,
    )


def broker_dead_letters_overflow(profile: Profile) -> bool:
    """Tell whether a full hot queue dead-letters a refused job by itself.

    Quorum queues don't know `reject-publish-dlx` (measured on 4.3.6: they fall back to dropping
    the head), so there the publisher puts what was refused into the dead letters.
    """
    return profile == "classic"


def overflowed(routing_key: str) -> DeadLetterInfo:
    """Return the dead-letter information of a job that its full lane refused."""
    return DeadLetterInfo(Reason.OVERFLOWED, routing_key, message="the lane was full")


_OVERFLOW_LANES = frozenset(lane.name for lane in LANES if lane.dead_letters_overflow)


def lane_full_error(routing_key: str) -> LaneFull:
    """Return the error that a nack of a job means: its lane was full."""
    return LaneFull(routing_key, dead_lettered=lane_of(routing_key) in _OVERFLOW_LANES)


def overflow_letter(job: Outgoing, profile: Profile) -> Envelope | None:
    """Return the dead letter that the publisher itself must send when `job` found its lane full.

    None when the job's lane keeps no dead letter of it, or the broker has dead-lettered it already.
    """
    if broker_dead_letters_overflow(profile) or lane_of(job.routing_key) not in _OVERFLOW_LANES:
        return None
    return envelope_of(job.message, overflowed(job.routing_key).headers())


def blocked_error() -> Blocked:
    """Return the outcome of a publish that was not sent because of an alarm."""
    return Blocked(
        "the broker blocks publishers (memory or disk alarm); nothing was sent: "
        "see `jobctl doctor`, free memory or disk"
    )


def unconfirmed_while_blocked_error() -> BrokerUnavailable:
    """Return the outcome of a publish that was on its way when the broker raised an alarm."""
    return BrokerUnavailable(
        "the broker blocks publishers (memory or disk alarm) and has not confirmed this message: "
        "it may still accept it when the alarm is over; see `jobctl doctor`, free memory or disk",
        maybe_accepted=True,
    )


def unconfirmed_error(timeout: float) -> BrokerUnavailable:
    """Return the outcome of a publish that the broker did not confirm in time."""
    return BrokerUnavailable(f"no confirm within {timeout:g} s", maybe_accepted=True)


def window_full_error(timeout: float) -> BrokerUnavailable:
    """Return the outcome of a publish that was not sent, because no earlier one was confirmed in
    time."""
    return BrokerUnavailable(
        f"the broker confirmed nothing within {timeout:g} s; this was not sent",
        maybe_accepted=False,
    )


class ConnectionFailureMemo:
    """Remembers a failed connect, so that the next jobs of a batch fail at once, and do not each
    wait for a time-out."""

    def __init__(self) -> None:
        self._error: BrokerUnavailable | None = None
        self._until = 0.0

    def note(self, error: object) -> None:
        """Note how the start of a publish ended: with an error or without."""
        if isinstance(error, BrokerUnavailable) and error is not self._error:
            self._error = error
            self._until = time.monotonic() + OUTAGE_PAUSE

    @property
    def error(self) -> BrokerUnavailable | None:
        """The last connect error, if it is less than OUTAGE_PAUSE seconds old; else None."""
        if self._error is not None and time.monotonic() >= self._until:
            self._error = None
        return self._error


class SizeLimit:
    """The largest message that may be sent, as far as a publisher knows. The broker names its own
    limit only when it closes the channel because of a larger message."""

    def __init__(self, max_bytes: int | None = None) -> None:
        """`max_bytes`: bytes of a job's message, as the settings say; never more than workers
        read."""
        self._job_limit = MAX_BODY_BYTES if max_bytes is None else max_bytes
        self._learned: int | None = None
        self._until = 0.0

    def learn(self, error: BaseException | None) -> None:
        """Learn the broker's limit from the error of a message that was sent."""
        if isinstance(error, MessageTooLarge):
            self._learned = error.limit
            self._until = time.monotonic() + SIZE_LIMIT_TTL

    @property
    def may_refuse(self) -> bool:
        """Whether `check_job` can refuse a message of at most MAX_BODY_BYTES: else its size need
        not be computed."""
        return self._job_limit < MAX_BODY_BYTES or self._learned is not None

    def check(self, size: int) -> None:
        """Raise MessageTooLarge for more bytes than the broker is known to take."""
        if self._learned is not None and size > self._learned:
            if time.monotonic() < self._until:
                raise MessageTooLarge(size, self._learned)
            self._learned = None

    def check_job(self, size: int) -> None:
        """Raise MessageTooLarge as `check`, or beyond a job's limit: a job that is larger
        than workers read would be accepted and never run."""
        self.check(size)
        if size > self._job_limit:
            is_reader_limit = self._job_limit == MAX_BODY_BYTES
            raise MessageTooLarge(
                size,
                self._job_limit,
                limited_by="a worker reads" if is_reader_limit else "JOBS_MAX_MESSAGE_SIZE allows",
            )
