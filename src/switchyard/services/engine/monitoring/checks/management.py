"""Whether the management API is there: topology, alarms and feature flags are asked of it."""

from __future__ import annotations

from switchyard.broker.errors import ManagementError, ManagementForbidden
from switchyard.broker.management.client import ManagementClient
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext

TIMEOUT = 3.0
"""Seconds for each of its answers."""


async def management(system: DoctorContext) -> list[Diagnostic]:
    """Reach it."""
    try:
        url = system.settings.require_management_url()
        client = ManagementClient(url, system.settings.vhost, timeout=TIMEOUT)
        try:
            await client.policies()
        except ManagementError:
            await client.close()
            raise
    except (ManagementError, ValueError) as error:
        return [unreachable(error)]
    system.management = client
    return [ok("management", "the management API answers")]


def unreachable(error: Exception) -> Diagnostic:
    """It does not answer, or refuses."""
    remedy = (
        "correct JOBS_MANAGEMENT_URL, or on the broker `rabbitmq-plugins enable "
        "rabbitmq_management`; AMQP alone does not tell topology and policies, alarms and "
        "watermarks, feature flags, consumer timeouts, the broker's clock, and workers' consumers"
    )
    return failure("management", Finding.MANAGEMENT_AWAY, str(error), remedy)


def unseen(what: str, error: ManagementForbidden) -> Diagnostic:
    """It answers, and does not let this user see that."""
    return warning(
        "permissions",
        Finding.MANAGEMENT_FORBIDS,
        f"can't see {what}: {error}",
        "ask again with a user that may: `export JOBS_MANAGEMENT_URL=http://USER:PASSWORD@HOST:PORT`",
    )
