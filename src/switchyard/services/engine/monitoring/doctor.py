"""Run all checks of the doctor in order, and collect their findings and remedies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from switchyard.broker.errors import BrokerUnavailable, ManagementError, ManagementForbidden
from switchyard.services.common.settings import Settings
from switchyard.services.engine.monitoring.check import Diagnostic
from switchyard.services.engine.monitoring.checks import (
    broker,
    host,
    jobs,
    lanes,
    ledger,
    topology,
    workers,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.wings import load_contributions

Check = Callable[[DoctorContext], Awaitable[list[Diagnostic]]]


@dataclass(frozen=True, slots=True)
class DoctorStep:
    """One check of the doctor, and the services that it needs."""

    check: Check
    broker: bool = False
    """Run it only if the broker was reached."""
    management: str = ""
    """What the check reads from the management API, in words; empty where it does not need it."""
    ledger: bool = False
    on_demand: bool = False
    """Run it only for a person who waits for it: it costs too much to run every few minutes."""

    def is_possible(self, context: DoctorContext) -> bool:
        """Tell whether the services that the check needs were reached."""
        return (
            not (self.broker and context.broker is None)
            and not (self.management and context.management is None)
            and not (self.ledger and context.ledger is None)
        )


SERVICE_STEPS = (
    DoctorStep(host.variables),
    # Before the broker and the storage, which a full disk stops.
    DoctorStep(host.disk),
    DoctorStep(broker.broker),
    DoctorStep(broker.version, broker=True),
    DoctorStep(broker.management, broker=True),
    DoctorStep(broker.alarms, management="alarms and watermarks"),
    DoctorStep(broker.consumer_timeout, management="consumer timeouts"),
    DoctorStep(broker.features, management="feature flags"),
    DoctorStep(ledger.ledger),
    DoctorStep(ledger.system, broker=True, ledger=True),
    # After the ledger, which knows the job types of modules that are not loaded here.
    DoctorStep(topology.topology, management="topology and policies"),
    DoctorStep(ledger.host_clock, ledger=True),
    DoctorStep(ledger.broker_clock, management="the broker's clock"),
    DoctorStep(host.storage),
    DoctorStep(host.readable),
    DoctorStep(host.keys),
)
"""Checks of broker, ledger and host, each after those that it depends on."""
SYSTEM_STEPS = (
    DoctorStep(lanes.lanes, broker=True),
    DoctorStep(workers.scheduler, ledger=True),
    DoctorStep(jobs.pauses, ledger=True),
    DoctorStep(jobs.retention, ledger=True),
    DoctorStep(jobs.archive, ledger=True, on_demand=True),
    DoctorStep(jobs.schedules, ledger=True),
    DoctorStep(workers.workers, ledger=True),
    DoctorStep(workers.killed, ledger=True),
    DoctorStep(workers.blocked, ledger=True),
    DoctorStep(workers.consuming, management="workers' consumers", ledger=True),
    DoctorStep(workers.unknown_types, ledger=True),
    DoctorStep(workers.outdated_types, ledger=True),
    DoctorStep(jobs.timeouts, ledger=True),
    DoctorStep(jobs.overdue, ledger=True),
    DoctorStep(jobs.cancels, ledger=True),
    DoctorStep(jobs.joins, ledger=True),
    DoctorStep(jobs.outbox, broker=True, ledger=True),
    DoctorStep(jobs.operations, ledger=True),
    DoctorStep(jobs.dead, ledger=True),
)
"""Checks of the running system."""


async def diagnose(
    settings: Settings, include: Iterable[str] = (), *, on_demand: bool = False
) -> AsyncIterator[Diagnostic]:
    """Run all checks, with the job types of JOBS_MODULES and of `include`. The wings' checks come
    between those of the host and those of the running system. An unreachable service is reported
    within seconds. `on_demand`: a person waits for the results."""
    registry, missing = host.load_types(settings, include)
    for check in missing:
        yield check
    context = DoctorContext(settings, registry)
    wing_steps = [step for steps in load_contributions("doctor_steps") for step in steps()]
    try:
        for step in (*SERVICE_STEPS, *wing_steps, *SYSTEM_STEPS):
            if on_demand or not step.on_demand:
                for check in await _run_step(step, context):
                    yield check
    finally:
        await context.close()


async def _run_step(step: DoctorStep, context: DoctorContext) -> list[Diagnostic]:
    """Run a step, if its services were reached. Return its results, with the host's own command in
    place of `rabbitmqctl`."""
    if not step.is_possible(context):
        return []
    rabbitmqctl = f"`{context.settings.rabbitmqctl} "
    results = await _run_check(step, context)
    context.found |= {check.finding for check in results if check.finding is not None}
    return [
        replace(check, remedy=check.remedy.replace("`rabbitmqctl ", rabbitmqctl))
        for check in results
    ]


async def _run_check(step: DoctorStep, context: DoctorContext) -> list[Diagnostic]:
    """Run a check. If a service has gone away meanwhile, return the diagnostic of that."""
    try:
        return await step.check(context)
    except ManagementForbidden as error:
        return [broker.report_forbidden(step.management, error)]
    except ManagementError as error:
        return [broker.report_unreachable(error)]
    except BrokerUnavailable as error:
        return [broker.report_away(context, error)]
    except LedgerError as error:
        return [ledger.report_unusable(context, error)]
