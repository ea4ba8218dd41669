"""Is everything as it must be, and if not, what is to be done: all checks, one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from switchyard.broker.errors import BrokerAway, ManagementError, ManagementForbidden
from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Check
from switchyard.services.engine.monitoring.checks import (
    alarms,
    broker,
    clocks,
    features,
    host,
    jobs,
    lanes,
    ledger,
    limits,
    management,
    models,
    modules,
    schedules,
    sources,
    systems,
    topology,
    workers,
)
from switchyard.services.engine.monitoring.checks.examined import Examined
from switchyard.services.engine.records.errors import LedgerError

Look = Callable[[Examined], Awaitable[list[Check]]]


@dataclass(frozen=True, slots=True)
class _Step:
    """One subject."""

    look: Look
    broker: bool = False
    """It is asked only where the broker was reached; so with the two that follow."""
    management: str = ""
    """What the management API is asked for."""
    ledger: bool = False

    def can_be_asked(self, system: Examined) -> bool:
        return not (
            (self.broker and system.broker is None)
            or (bool(self.management) and system.management is None)
            or (self.ledger and system.ledger is None)
        )


OUTER = (
    _Step(host.variables),
    _Step(broker.broker),
    _Step(broker.version, broker=True),
    _Step(management.management, broker=True),
    _Step(topology.topology, management="topology and policies"),
    _Step(alarms.alarms, management="alarms and watermarks"),
    _Step(limits.consumer_timeout, management="consumer timeouts"),
    _Step(features.features, management="feature flags"),
    _Step(ledger.ledger),
    _Step(systems.system, broker=True, ledger=True),
    _Step(clocks.ledger_clock, ledger=True),
    _Step(clocks.broker_clock, management="the broker's clock"),
    _Step(host.disk),
    _Step(host.storage),
    _Step(host.readable),
    _Step(host.keys),
)
"""Broker, ledger and host, in the order in which one thing builds on another."""
INNER = (
    _Step(models.model_servers, ledger=True),
    _Step(sources.sources, ledger=True),
    _Step(lanes.lanes, broker=True),
    _Step(workers.scheduler, ledger=True),
    _Step(schedules.schedules, ledger=True),
    _Step(workers.workers, ledger=True),
    _Step(workers.killed, ledger=True),
    _Step(workers.blocked, ledger=True),
    _Step(workers.consuming, management="workers' consumers", ledger=True),
    _Step(workers.lacking, ledger=True),
    _Step(jobs.timeouts, ledger=True),
    _Step(jobs.overdue, ledger=True),
    _Step(jobs.cancels, ledger=True),
    _Step(jobs.joins, ledger=True),
    _Step(jobs.outbox, broker=True, ledger=True),
    _Step(jobs.dead, ledger=True),
)
"""What goes on there."""


async def diagnose(
    settings: Settings,
    include: Iterable[str] = (),
    host_looks: Iterable[Callable[[Settings], Awaitable[list[Check]]]] = (),
) -> AsyncIterator[Check]:
    """All checks, with the job types of JOBS_MODULES and of `include`. What is away is an answer,
    given within seconds. `host_looks` are asked behind those about this host: what rooms above
    this one know of the settings."""
    registry, missing = modules.load_types(settings, include)
    for check in missing:
        yield check
    system = Examined(settings, registry)
    try:
        for step in OUTER:
            for check in await _asked(step, system):
                yield check
        for look in host_looks:
            for check in await look(settings):
                yield check
        for step in INNER:
            for check in await _asked(step, system):
                yield check
    finally:
        await system.close()


async def _asked(step: _Step, system: Examined) -> list[Check]:
    """The answers, where it can be asked, with the commands as they are called here."""
    if not step.can_be_asked(system):
        return []
    rabbitmqctl = f"`{system.settings.rabbitmqctl} "
    answers = await _answers(step, system)
    system.found |= {check.finding for check in answers if check.finding is not None}
    return [
        replace(check, remedy=check.remedy.replace("`rabbitmqctl ", rabbitmqctl))
        for check in answers
    ]


async def _answers(step: _Step, system: Examined) -> list[Check]:
    """That something went away meanwhile is one, too."""
    try:
        return await step.look(system)
    except ManagementForbidden as error:
        return [management.unseen(step.management, error)]
    except ManagementError as error:
        return [management.unreachable(error)]
    except BrokerAway as error:
        return [broker.away(system, error)]
    except LedgerError as error:
        return [ledger.unusable(system, error)]
