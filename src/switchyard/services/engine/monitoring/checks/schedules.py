"""Whether schedules fire when they are due, and what they fire is taken."""

from __future__ import annotations

from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, some
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.schedule_status import lateness
from switchyard.services.engine.records.schedules import FiringOutcome

LATE = 60.0
"""Seconds: longer than a change of schedulers takes."""


async def schedules(system: DoctorContext) -> list[Diagnostic]:
    """Those that are overdue, and those whose last job was refused."""
    ledger = system.need_ledger()
    entries = await ledger.schedules.schedules()
    if not entries:
        return []
    _, now = await ledger.schedules.due_schedules(1)
    waiting = await ledger.schedules.waiting_firings()
    last = await ledger.schedules.last_firings(settled=True)
    late = {name for name, since in lateness(entries, waiting, now).items() if since > LATE}
    checks = []
    if late:
        reasons = {name: each.note for name, each in waiting.items() if each.note is not None}
        told = [f"{name} ({reasons[name]})" if name in reasons else name for name in sorted(late)]
        remedy = "`jobctl scheduler`; where one runs, its log says why"
        if late <= reasons.keys():
            remedy = "mend what is said: it is tried again every few seconds"
        checks.append(
            failure(
                "schedules",
                Finding.SCHEDULE_OVERDUE,
                f"due and not fired for over {LATE:g} s: {some(told)}",
                remedy,
            )
        )
    refused = [each for each in last.values() if each.outcome is FiringOutcome.REFUSED]
    if refused:
        ended = some([f"{each.schedule} ({each.note})" for each in refused])
        checks.append(
            failure(
                "schedules",
                Finding.SCHEDULE_REFUSED,
                f"the last job was refused of {ended}",
                f"mend what is said, then `jobctl schedules run {refused[0].schedule}`",
            )
        )
    return checks or [ok("schedules", f"{len(entries):,} fire when they are due")]
