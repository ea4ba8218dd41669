"""Write a topology as a RabbitMQ definitions file."""

from __future__ import annotations

import json
from typing import Any

from switchyard.broker.management.model import (
    Arguments,
    Topology,
)


def render(topology: Topology, *, vhost: str = "/") -> dict[str, list[dict[str, Any]]]:
    """Return the definitions that RabbitMQ imports, at boot or through its management API.

    Without users and permissions. Every object names its virtual host, because a blank node has
    none; 3.10 also needs `durable` and `auto_delete`.
    """
    return {
        "vhosts": [{"name": vhost}],
        "policies": [
            {
                "vhost": vhost,
                "name": policy.name,
                "pattern": policy.pattern,
                "apply-to": policy.apply_to,
                "priority": policy.priority,
                "definition": _sort_arguments(policy.definition),
            }
            for policy in topology.policies
        ],
        "exchanges": [
            {
                "vhost": vhost,
                "name": exchange.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": _sort_arguments(exchange.arguments),
            }
            for exchange in topology.exchanges
        ],
        "queues": [
            {
                "vhost": vhost,
                "name": queue.name,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": _sort_arguments(queue.declare_arguments),
            }
            for queue in topology.queues
        ],
        "bindings": [
            {
                "vhost": vhost,
                "source": binding.source,
                "destination": binding.destination,
                "destination_type": binding.destination_type,
                "routing_key": binding.routing_key,
                "arguments": _sort_arguments(binding.arguments),
            }
            for binding in topology.bindings
        ],
    }


def render_text(topology: Topology, *, vhost: str = "/") -> str:
    """Return the definitions of `render` as the text of a file."""
    return json.dumps(render(topology, vhost=vhost), indent=2, ensure_ascii=False) + "\n"


def _sort_arguments(arguments: Arguments) -> dict[str, Any]:
    return dict(sorted(arguments.items()))
