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
from switchyard.broker.message import MAX_BODY_BYTES, JobMessage, now
from switchyard.broker.settings import Profile
from switchyard.broker.wire.envelope import Envelope

CONFIRM_TIMEOUT = 0.5
"""Seconds that a publish under way waits for its confirm on a connection that is blocked. The
broker says that it blocks only when a message is published, and holds that message until the alarm
is over."""
SIZE_LIMIT_TTL = 60.0
"""Seconds for which larger messages are refused without being sent, after the broker has refused
one and told its limit: that may be changed, or another node may be asked."""
OUTAGE_PAUSE = 1.0
"""Seconds in which a batch that found the broker away does not look for it again."""


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
    """Where it must arrive. The asyncio publisher asks for that queue before it sends the job."""


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
    """accepted, full, unroutable, invalid, forbidden, blocked, away, or refused: a closed set, for
    counting."""
    return next((name for kind, name in _OUTCOMES if isinstance(result, kind)), "refused")


def counted_lane(routing_key: str) -> str:
    """Return the lane of that key, `other` for what is none: a closed set, for counting."""
    lane = lane_of(routing_key)
    return lane if lane in _LANE_NAMES else "other"


def envelope_of(
    message: JobMessage, headers: dict[str, Any] | None = None, *, body: bytes | None = None
) -> Envelope:
    """Return the message as it travels: AMQP properties repeat what routing and tools need. `body`
    is the one that it came with, where nothing has changed in it. Raises NeverTaken for a job that
    can't be written as JSON."""
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


def queued_now(message: JobMessage) -> JobMessage:
    """Return the message, stamped with the time at which it enters its lane."""
    return message.with_metadata(queued_at=now())


def broker_parks_overflow(profile: Profile) -> bool:
    """Tell whether a full hot queue dead-letters the newcomer by itself.

    Quorum queues don't know `reject-publish-dlx` (measured on 4.3.6: they fall back to dropping
    the head), so there the publisher puts what was refused into the dead letters.
    """
    return profile == "classic"


def overflowed(routing_key: str) -> DeadLetterInfo:
    """Return the certificate of a job that its full lane refused."""
    return DeadLetterInfo(Reason.OVERFLOWED, routing_key, message="the lane was full")


_PARKING_LANES = frozenset(lane.name for lane in LANES if lane.dead_letters_overflow)


def lane_full(routing_key: str) -> LaneFull:
    """Return what a nack means for a job that was published to its lane."""
    return LaneFull(routing_key, dead_lettered=lane_of(routing_key) in _PARKING_LANES)


def letter_to_park(job: Outgoing, profile: Profile) -> Envelope | None:
    """Return the dead letter that the publisher itself must send when `job` found its lane full.

    None when nothing is kept of it, or when the broker has dead-lettered it already.
    """
    if broker_parks_overflow(profile) or lane_of(job.routing_key) not in _PARKING_LANES:
        return None
    return envelope_of(job.message, overflowed(job.routing_key).headers())


def blocked() -> Blocked:
    """Return the outcome of a publish that was not sent because of an alarm."""
    return Blocked(
        "the broker blocks publishers (memory or disk alarm); nothing was sent: "
        "see `jobctl doctor`, free memory or disk"
    )


def held() -> BrokerUnavailable:
    """Return the outcome of a publish that was on its way when the broker raised an alarm."""
    return BrokerUnavailable(
        "the broker blocks publishers (memory or disk alarm) and holds what was sent until then, "
        "which it may take yet: see `jobctl doctor`, free memory or disk",
        maybe_accepted=True,
    )


def unconfirmed(timeout: float) -> BrokerUnavailable:
    """Return a publish that the broker did not confirm in time."""
    return BrokerUnavailable(f"no confirm within {timeout:g} s", maybe_accepted=True)


def no_room(timeout: float) -> BrokerUnavailable:
    """Return the outcome of a publish that was not sent, because no earlier one was confirmed in
    time."""
    return BrokerUnavailable(
        f"the broker confirmed nothing within {timeout:g} s; this was not sent",
        maybe_accepted=False,
    )


class ConnectionFailureMemo:
    """Spares the rest of a batch from looking for a broker that is away, one time-out each."""

    def __init__(self) -> None:
        self._error: BrokerUnavailable | None = None
        self._until = 0.0

    def note(self, error: object) -> None:
        """Note what became of a job that was to be sent."""
        if isinstance(error, BrokerUnavailable) and error is not self._error:
            self._error = error
            self._until = time.monotonic() + OUTAGE_PAUSE

    @property
    def error(self) -> BrokerUnavailable | None:
        """The error of the last job, if it is so fresh that the next one would meet it too."""
        if self._error is not None and time.monotonic() >= self._until:
            self._error = None
        return self._error


class SizeLimit:
    """How large a message may be, as far as a publisher knows. The broker says what its limit is
    only when it closes the channel on a message that is larger."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: bytes of a job's message, as the settings say; never more than workers read."""
        self._job_limit = MAX_BODY_BYTES if most is None else most
        self._learned: int | None = None
        self._until = 0.0

    def learn(self, error: BaseException | None) -> None:
        """Learn what became of a message that was sent."""
        if isinstance(error, MessageTooLarge):
            self._learned = error.limit
            self._until = time.monotonic() + SIZE_LIMIT_TTL

    @property
    def may_refuse(self) -> bool:
        """Whether the known limit is below MAX_BODY_BYTES, which every job's message keeps to
        anyway."""
        return self._job_limit < MAX_BODY_BYTES or self._learned is not None

    def check(self, size: int) -> None:
        """Raise MessageTooLarge for more bytes than the broker is known to take."""
        if self._learned is not None and size > self._learned:
            if time.monotonic() < self._until:
                raise MessageTooLarge(size, self._learned)
            self._learned = None

    def check_job(self, size: int) -> None:
        """As `check`, for the message of a job. Whatever the broker takes, a job that is larger
        than workers read would be accepted and never run."""
        self.check(size)
        if size > self._job_limit:
            read = self._job_limit == MAX_BODY_BYTES
            raise MessageTooLarge(
                size,
                self._job_limit,
                who="a worker reads" if read else "JOBS_MAX_MESSAGE_SIZE allows",
            )
