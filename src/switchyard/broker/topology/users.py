"""Users of the broker, each with no more rights than its processes need.

RabbitMQ permits by regular expressions over names: to configure (declare, delete), write (publish
to an exchange, bind a queue) and read (consume, bind to an exchange).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from switchyard.broker.lanes import (
    CONTROL_EXCHANGE,
    DEAD_EXCHANGE,
    EVENTS_EXCHANGE,
    JOBS_EXCHANGE,
    LANES,
    SYSTEM_EXCHANGE,
    UNBOUND_SUFFIX,
)
from switchyard.broker.management.client import ManagementClient

_LISTENER_QUEUES = r"amq\.gen-.*"
"""Queues that the broker names, for processes that listen to events or commands."""
_SYSTEM = re.escape(SYSTEM_EXCHANGE)
_UNKNOWN_MARK = r"\?"
"""`system_mark.read_mark` redeclares `jobs.system` with this alternate exchange, which does not
exist: the broker's refusal quotes the name of the real alternate exchange, which is the mark."""
_ANY_MARK = r"[0-9a-f]{12}\.[0-9]{1,12}(\..*)?"
"""Form of a mark. Declaring an exchange needs the right to write to its alternate exchange."""
_LANES = f"({'|'.join(lane.name for lane in LANES)})" + r"\..*"
_UNFINISHED = _LANES + re.escape(UNBOUND_SUFFIX)
"""Exchanges that mark a lane's queue as not yet bound; nothing is published to them."""
_RETRY = r"jobs\.retry\..*"
_ALL = r"jobs\..*"
_DEFAULT = r"amq\.default"

PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Role:
    """Rights of the processes of one kind."""

    name: str
    purpose: str
    configure: str
    write: str
    read: str
    tags: tuple[str, ...] = ()
    """For the management API."""

    @property
    def permissions(self) -> Mapping[str, str]:
        """Its rights, in the form of the management API."""
        return {"configure": self.configure, "write": self.write, "read": self.read}


def _any_of(*patterns: str) -> str:
    return f"^({'|'.join(patterns)})$"


def _escape_all(*exchanges: str) -> tuple[str, ...]:
    return tuple(re.escape(each) for each in exchanges)


ROLES = (
    Role(
        "publisher",
        "JobPublisher and the HTTP API: publish jobs, call them off, hear what becomes of them",
        configure=_any_of(_SYSTEM, _LISTENER_QUEUES),
        # No right to a lane or to jobs.dead: whoever may write to a queue and hear jobs.events may
        # bind the one to the other. Depths come from the management API where AMQP hides them.
        write=_any_of(
            *_escape_all(JOBS_EXCHANGE, CONTROL_EXCHANGE, EVENTS_EXCHANGE),
            _SYSTEM,
            _UNKNOWN_MARK,
            _LISTENER_QUEUES,
        ),
        read=_any_of(*_escape_all(EVENTS_EXCHANGE), _UNFINISHED, _SYSTEM, _LISTENER_QUEUES),
        tags=("management",),  # read-only: unacknowledged messages and policies, which AMQP lacks
    ),
    Role(
        "worker",
        "`jobctl worker`: take jobs from the lanes, publish what follows, retries and dead letters",
        configure=_any_of(_SYSTEM, _LISTENER_QUEUES),
        write=_any_of(
            *_escape_all(JOBS_EXCHANGE, DEAD_EXCHANGE, EVENTS_EXCHANGE),
            _RETRY,
            _SYSTEM,
            _UNKNOWN_MARK,
            _LISTENER_QUEUES,
        ),
        read=_any_of(
            _LANES, *_escape_all(CONTROL_EXCHANGE, EVENTS_EXCHANGE), _SYSTEM, _LISTENER_QUEUES
        ),
    ),
    Role(
        "admin",
        "`jobctl scheduler` and `jobctl` by hand: all that is Switchyard's, and nothing else",
        configure=_any_of(_ALL, _LANES, _LISTENER_QUEUES),
        write=_any_of(_ALL, _LANES, _UNKNOWN_MARK, _ANY_MARK, _DEFAULT, _LISTENER_QUEUES),
        read=_any_of(_ALL, _LANES, _LISTENER_QUEUES),
        tags=("monitoring", "policymaker"),
    ),
)


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A user of the broker, as `make_users` leaves it."""

    name: str
    role: Role
    password: str | None
    """The password that was made; None where the user keeps its own, or it was given."""


async def make_users(
    client: ManagementClient,
    prefix: str,
    *,
    renew: bool = False,
    passwords: Mapping[str, str] = MappingProxyType({}),
) -> list[BrokerUser]:
    """Make a user for each role, `<prefix>-<role>`, or give one that is there its rights again.

    `passwords` are passwords by role: such a user has that one from now on. With `renew` the others
    that are there get new passwords, too. Needs the tag `administrator`. Raises ManagementError.
    """
    users = []
    for role in ROLES:
        name = f"{prefix}-{role.name}"
        password = None
        if role.name not in passwords and (renew or not await client.has_user(name)):
            password = secrets.token_urlsafe(PASSWORD_BYTES)
        await client.put_user(name, password=passwords.get(role.name, password), tags=role.tags)
        await client.put_permissions(name, role.permissions)
        users.append(BrokerUser(name, role, password))
    return users
