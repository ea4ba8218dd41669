"""Everything that can go wrong between this process and the broker.

BrokerError
├── MalformedMessage         a body that is not a job: no JSON, wrong fields, too large
│   └── ForeignCopy          a message with the id of another job
├── TopologyMismatch         a live queue or exchange has a type or argument that can't be changed
├── ManagementError          the management HTTP API refused, or can't be reached
│   └── ManagementForbidden  it refuses the user, the password, or what the user asks for
└── PublishError             a publish that did not end in `Accepted`
    ├── Refused              the broker answered with a nack
    │   └── LaneFull         the queue is at its maximum length; says what became of the message
    ├── Unroutable           no queue for this routing key
    ├── NeverTaken           the message itself is refused, however often it is sent
    │   └── MessageTooLarge  it has more bytes than the broker takes, or a worker reads
    ├── NotPermitted         this user of the broker may not publish there
    ├── Blocked              the broker has a memory or disk alarm and takes nothing in
    └── BrokerUnavailable    no connection, or it was cut before the confirm
        ├── LimitReached     the broker takes no more connections or channels for now
        └── BrokerAuthError  the broker refuses the user, password or vhost
            └── WrongSystem  the broker is another system's, or this ledger is an old copy
"""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all errors of this package. The text says what to do."""


class MalformedMessage(BrokerError):
    """The body is not a job message."""


class ForeignCopy(MalformedMessage):
    """The message has the id of another job: it was not published by this system."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"another job has the id {job_id}: this message has another type or payload, claims a "
            "redrive that did not happen, or has a time in the future. Publish it anew, under an "
            "id of its own"
        )


class TopologyMismatch(BrokerError):
    """A queue or exchange on the broker can't be changed in place into the declared one."""


class ManagementError(BrokerError):
    """The management API can't be reached or refused a request."""


class ManagementForbidden(ManagementError):
    """The management API refuses the user or the password, or the user lacks a right."""


class PublishError(BrokerError):
    """The broker did not take the message; the subclass says why."""

    @property
    def left_nothing(self) -> bool:
        """Whether it is certain that nothing of the message is on the broker."""
        return True


class Refused(PublishError):
    """The broker answered with a nack: the message is in no queue that it was meant for."""


class LaneFull(Refused):
    """The target queue is at its maximum length.

    `dead_lettered` tells what became of the message: True when it waits in `jobs.dead` with
    the reason `overflowed`, False when nothing of it is left on the broker.
    """

    def __init__(self, routing_key: str, *, dead_lettered: bool) -> None:
        self.routing_key = routing_key
        self.dead_lettered = dead_lettered
        fate = "it waits in jobs.dead" if dead_lettered else "nothing was kept: publish it later"
        super().__init__(f"the lane of {routing_key!r} is full; {fate}")

    @property
    def left_nothing(self) -> bool:
        return not self.dead_lettered


class Unroutable(PublishError):
    """No queue takes this routing key; nothing of the message is left on the broker."""

    def __init__(self, exchange: str, routing_key: str, *, queue: str | None = None) -> None:
        """`queue`: the queue that should take it, where that queue is known to be missing."""
        self.exchange = exchange
        self.routing_key = routing_key
        missing = (
            f"no queue is bound to {exchange!r} for {routing_key!r}"
            if queue is None
            else f"there is no queue {queue!r} on the broker for {routing_key!r}"
        )
        super().__init__(f"{missing}: run `jobctl topology apply`")


class NeverTaken(PublishError, ValueError):
    """The broker refuses the message itself, now and later; nothing of it is on the broker.

    A ValueError as well: the caller gave a message that can't be published.
    """


class MessageTooLarge(NeverTaken):
    """The message has more bytes than the broker takes (`max_message_size`), or a worker reads."""

    def __init__(self, size: int, limit: int, *, limited_by: str = "the broker takes") -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the message has {size:,} bytes, and {limited_by} at most {limit:,}: put the large "
            "input into storage and pass its key"
        )


class NotPermitted(PublishError):
    """The broker does not let this user publish there; nothing of the message is on the broker."""

    def __init__(self, exchange: str, routing_key: str, reason: str) -> None:
        super().__init__(
            f"the user of JOBS_AMQP_URL may not publish {routing_key!r} to the exchange "
            f"{exchange!r} ({reason}): grant it, `jobctl topology users` shows how"
        )


class Blocked(PublishError):
    """The broker blocks publishers (memory or disk alarm). Nothing was sent."""


class BrokerUnavailable(PublishError):
    """There is no connection, or it was lost before the confirm.

    `maybe_accepted` is True when the message had been sent: it may or may not be in its
    queue, so publish it again under the same job id.
    """

    def __init__(
        self, message: str, *, maybe_accepted: bool, closed_by_some_message: bool = False
    ) -> None:
        """`closed_by_some_message`: the broker closed the channel because it refuses one of several
        messages on it, without saying which one. Both publishers then send each message alone, to
        find the refused one."""
        self.maybe_accepted = maybe_accepted
        self.closed_by_some_message = closed_by_some_message
        super().__init__(message)

    @property
    def left_nothing(self) -> bool:
        return not self.maybe_accepted


class LimitReached(BrokerUnavailable):
    """The broker takes no more connections or channels of this user, in this vhost or on this node.
    Nothing is wrong with the address: the connect is tried again until some are closed or the limit
    is raised."""


class BrokerAuthError(BrokerUnavailable):
    """The broker refuses user, password or vhost: waiting does not help."""


class WrongSystem(BrokerAuthError):
    """The broker belongs to another system than the ledger, or the ledger is an old copy: nothing
    is to be published or consumed. The text names both and says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, maybe_accepted=False)
