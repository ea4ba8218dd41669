"""Data classes for exchanges, queues, bindings and policies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.broker.lanes import JOBS_EXCHANGE
from switchyard.broker.settings import Profile

POLICY_PRIORITY = 10
"""Above the 0 that a catch-all policy of an operator has by default: only one policy applies to
a queue, and a lane without its own would lose its dead-letter exchange."""
Arguments = Mapping[str, Any]
"""AMQP arguments or a policy's definition: JSON values by key."""


@dataclass(frozen=True, slots=True)
class Exchange:
    name: str
    type: str
    arguments: Arguments = field(default_factory=dict, hash=False)
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    name: str
    type: str
    """`classic` or `quorum`; a live queue may also be another type."""
    arguments: Arguments = field(default_factory=dict, hash=False)
    """Without `x-queue-type`, which is `type`."""
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False

    @property
    def declare_arguments(self) -> dict[str, Any]:
        """The arguments to declare it with. The type is always named, because a virtual host
        may have another default."""
        return {"x-queue-type": self.type, **self.arguments}

    @property
    def is_temporary(self) -> bool:
        """Whether the broker deletes it with its consumer, so that it is no part of a topology."""
        return self.exclusive or self.auto_delete


@dataclass(frozen=True, slots=True)
class Binding:
    source: str
    destination: str
    routing_key: str = ""
    destination_type: str = "queue"
    arguments: Arguments = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.source} → {self.destination} ({self.routing_key or 'every key'})"


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    pattern: str
    """Regular expression, found anywhere in a queue's name unless it is anchored."""
    definition: Arguments = field(hash=False)
    priority: int = POLICY_PRIORITY
    apply_to: str = "queues"
    """RabbitMQ 3.10 knows `all`, `queues` and `exchanges` only."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that must exist in one virtual host."""

    profile: Profile
    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]
    policies: tuple[Policy, ...]
    prefixes: tuple[str, ...]
    """Prefixes of this system's names; anything else on the broker is ignored."""

    def owns(self, name: str) -> bool:
        """Tell whether an exchange, queue or policy of that name is this system's."""
        return name.startswith(self.prefixes)

    @property
    def bound_queues(self) -> frozenset[str]:
        """The queues that `jobs.topic` brings jobs to."""
        return frozenset(each.destination for each in self.bindings if each.source == JOBS_EXCHANGE)

    def policy_of(self, queue: str) -> Policy | None:
        """Return the declared policy that must be in force on a queue."""
        return next((p for p in self.policies if re.search(p.pattern, queue)), None)
