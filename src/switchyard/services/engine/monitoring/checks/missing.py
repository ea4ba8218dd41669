"""Whether the broker still has what waits in its queues by the ledger.

Somebody who deletes or purges a queue deletes its jobs with it, those that wait in a retry queue
for their next attempt, too. The broker tells nobody, and the ledger has them as waiting for ever.
"""

from __future__ import annotations

from switchyard.broker.dead.certificate import Reason
from switchyard.broker.lanes import retry_name
from switchyard.broker.wire.depths import ask_queues
from switchyard.broker.wording import pluralize
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, some
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.lane_report import QueueReport, Report

UNCHANGED = 60.0
"""Seconds since the ledger last heard of a job: by then the broker's numbers have it."""


async def missing(system: DoctorContext, report: Report) -> list[Diagnostic]:
    """Queues of which the broker holds fewer jobs than it must by the ledger, which is asked last:
    what starts meanwhile waits no more."""
    queues = [queue for lane in report.lanes if lane.priority is not None for queue in lane.queues]
    [dead] = [queue for lane in report.lanes if lane.priority is None for queue in lane.queues]
    if system.ledger is None or report.management is not None:
        return []
    elsewhere = await _in_retry_queues(system) + await _unread_letters(system, dead)
    # Again, for what has come back from a retry queue between the two.
    again = await _ready(system, [queue.name for queue in queues])
    waiting = await system.ledger.gauges.queued_since(system.now() - UNCHANGED)
    found = []
    for queue in queues:
        lane, _, kind = queue.name.partition(".")
        number = waiting.get((lane, kind), 0)
        held = max(queue.ready, again[queue.name]) + (queue.unacked or 0) + elsewhere
        if queue.exists and number > held:
            found.append((lane, f"{held:,} of {pluralize(number, 'job')} of {queue.name}"))
    if not found:
        return []
    lanes = list(dict.fromkeys(lane for lane, _ in found))
    commands = " and ".join(f"`jobctl jobs republish --lane {lane}`" for lane in lanes)
    return [
        failure(
            "missing jobs",
            Finding.JOBS_MISSING,
            f"the broker holds no more than {some([text for _, text in found])}, which wait by the "
            "ledger: somebody deleted or purged their queue, or the one of retries that they were "
            "in",
            f"{commands}: publishes them again, and a job that is there after all runs only once",
        )
    ]


async def _in_retry_queues(system: DoctorContext) -> int:
    """Return where jobs wait that an attempt has put off."""
    names = [retry_name(delay) for delay in system.settings.retry_delays]
    return sum((await _ready(system, names)).values())


async def _ready(system: DoctorContext, names: list[str]) -> dict[str, int]:
    depths = await ask_queues(system.settings.require_amqp_url(), names)
    return {name: 0 if each is None else each.ready for name, each in depths.items()}


async def _unread_letters(system: DoctorContext, dead: QueueReport) -> int:
    """Dead letters that the ledger has not seen, or that go back by themselves: it may have their
    jobs as queued."""
    known = (await system.need_ledger().gauges.gauges()).dead
    seen = sum(number for (_, reason), number in known.items() if reason != Reason.DISPLACED)
    return max(0, dead.ready - seen)
