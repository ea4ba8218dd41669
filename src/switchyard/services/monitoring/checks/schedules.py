"""Whether schedules fire when they are due, and what they fire is taken."""

from __future__ import annotations

from switchyard.services.monitoring.check import Check, Finding, some, well, wrong
from switchyard.services.monitoring.checks.examined import Examined
from switchyard.services.monitoring.schedule_status import lateness
from switchyard.services.records.schedules import FiringOutcome

LATE = 60.0
"""Seconds: longer than a change of schedulers takes."""


async def schedules(system: Examined) -> list[Check]:
    """Those that are overdue, and those whose last job was refused."""
    ledger = system.need_ledger()
    entries = await ledger.schedules()
    if not entries:
        return []
    _, now = await ledger.due_schedules(1)
    last = await ledger.last_firings()
    late = {name for name, since in lateness(entries, last, now).items() if since > LATE}
    checks = []
    if late:
        checks.append(
            wrong(
                "schedules",
                Finding.SCHEDULE_OVERDUE,
                f"due and not fired for over {LATE:g} s: {some(sorted(late))}",
                "`jobctl scheduler`; where one runs, its log says why",
            )
        )
    refused = [each for each in last.values() if each.outcome is FiringOutcome.REFUSED]
    if refused:
        told = some([f"{each.schedule} ({each.note})" for each in refused])
        checks.append(
            wrong(
                "schedules",
                Finding.SCHEDULE_REFUSED,
                f"the last job was refused of {told}",
                f"mend what is said, then `jobctl schedules run {refused[0].schedule}`",
            )
        )
    return checks or [well("schedules", f"{len(entries):,} fire when they are due")]
