"""The topology of a live broker, read from the answers of its management API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.broker.management.model import Binding, Exchange, Policy, Queue


@dataclass(frozen=True, slots=True)
class LiveQueue:
    """A queue as it is on the broker."""

    declared: Queue
    policy: str | None = None
    """Name of the one policy in force; None where no policy matches."""
    operator_policy: str | None = None
    """Name of the operator policy that is merged over it. RabbitMQ 3.10 and 4.3 name it for
    some types of queue only; `LiveTopology.operator_policies` has all of them."""
    messages: int = 0
    """Ready and unacknowledged together, as of the last few seconds."""

    @property
    def name(self) -> str:
        return self.declared.name


@dataclass(frozen=True, slots=True)
class LiveTopology:
    """The topology of one virtual host, read at once. The default exchange's bindings, which every
    queue has, are left out."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[LiveQueue, ...] = ()
    bindings: tuple[Binding, ...] = ()
    policies: tuple[Policy, ...] = ()
    operator_policies: tuple[Policy, ...] = ()


def exchange_from(item: Mapping[str, Any]) -> Exchange:
    return Exchange(
        name=item["name"],
        type=item["type"],
        arguments=dict(item["arguments"]),
        durable=item["durable"],
        auto_delete=item["auto_delete"],
        internal=item["internal"],
    )


def queue_from(item: Mapping[str, Any]) -> LiveQueue:
    arguments = dict(item["arguments"])
    queue_type = str(arguments.pop("x-queue-type", None) or item.get("type", "classic"))
    return LiveQueue(
        Queue(
            name=item["name"],
            type=queue_type,
            arguments=arguments,
            durable=item["durable"],
            auto_delete=item["auto_delete"],
            exclusive=bool(item.get("exclusive")),
        ),
        policy=item.get("policy") or None,
        operator_policy=item.get("operator_policy") or None,
        messages=int(item.get("messages") or 0),
    )


def binding_from(item: Mapping[str, Any]) -> Binding:
    return Binding(
        source=item["source"],
        destination=item["destination"],
        routing_key=item["routing_key"],
        destination_type=item["destination_type"],
        arguments=dict(item["arguments"]),
    )


def policy_from(item: Mapping[str, Any]) -> Policy:
    return Policy(
        name=item["name"],
        pattern=item["pattern"],
        definition=dict(item["definition"]),
        priority=item["priority"],
        apply_to=item["apply-to"],
    )
