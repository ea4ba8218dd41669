"""Check that a queue is bound for a routing key, by the management API: AMQP can't tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry

ANSWER_TIMEOUT = 1.0
"""Seconds to wait for the management API's answer; without one, the job is published."""
_WILDCARDS = frozenset("*#")


async def require_binding(settings: Settings, registry: Registry, routing_key: str) -> None:
    """Raise CommandFailed where the broker has no binding for that key, as for a new job type: the
    broker would take the job, and pass it on to the dead letters.

    Nothing is checked where the management API is away or refuses our user: then the job's end
    shows it. A key of no known job type is refused when the job is prepared.
    """
    import asyncio

    from switchyard.broker.errors import ManagementError, Unroutable
    from switchyard.broker.lanes import JOBS_EXCHANGE
    from switchyard.broker.management.client import ManagementClient

    if routing_key not in {route.routing_key for route in registry.routes}:
        return
    url = settings.require_management_url()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT), ManagementClient(url, settings.vhost) as client:
            bindings = await client.bindings()
    except (TimeoutError, ManagementError):
        return
    keys = {each.routing_key for each in bindings if each.source == JOBS_EXCHANGE}
    # No binding at all: the topology is missing, which the publish reports more clearly.
    if keys and routing_key not in keys and not any(_WILDCARDS & set(key) for key in keys):
        error = Unroutable(JOBS_EXCHANGE, routing_key)
        raise CommandFailed(f"{error}; nothing was kept of the job: publish it again then")
