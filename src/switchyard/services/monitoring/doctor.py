"""Is everything as it must be, and if not, what is to be done: all checks, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

from switchyard.services.jobs.registry import Registry
from switchyard.services.monitoring.broker_checks import broker_checks
from switchyard.services.monitoring.check import Check
from switchyard.services.monitoring.ledger_checks import ledger_checks
from switchyard.services.settings import Settings


async def diagnose(settings: Settings, registry: Registry) -> AsyncIterator[Check]:
    """All checks, in the order in which one thing builds on another. What is away is an answer."""
    async for check in broker_checks(settings, registry):
        yield check
    async for check in ledger_checks(settings):
        yield check
