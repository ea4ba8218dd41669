"""Whether this host's clock and the broker's agree with the ledger's, by which jobs grow old."""

from __future__ import annotations

from datetime import timedelta

from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext

BROKER_TOLERANCE = 5.0
"""Seconds: the broker tells its time in whole ones."""
MUCH = 60.0
"""Seconds from which it is no matter of taste any more."""


async def ledger_clock(system: DoctorContext) -> list[Diagnostic]:
    """This host's."""
    ahead = -system.need_ledger().clock.offset
    if not ahead:
        return [ok("clock", "this host's clock agrees with the ledger's")]
    detail = (
        f"this host's clock is {_by(ahead)} the ledger's; ages of jobs go by the ledger's, so none "
        "is lost by it, but logs and certificates go by this one"
    )
    return [_found(ahead, "clock", Finding.CLOCK_LEDGER, detail, "this host")]


async def broker_clock(system: DoctorContext) -> list[Diagnostic]:
    """The broker's, against the ledger's where that is known."""
    theirs = await system.need_management().time()
    # Not the host's, for which `ledger_clock` speaks.
    ahead = theirs - system.now()
    if abs(ahead) <= BROKER_TOLERANCE:
        return [ok("broker clock", "the broker's clock agrees")]
    detail = (
        f"the broker's clock is {_by(ahead)} {'the ledger' if system.ledger else 'this host'}'s"
    )
    return [_found(ahead, "broker clock", Finding.CLOCK_BROKER, detail, "the broker's host")]


def _found(ahead: float, name: str, finding: Finding, detail: str, where: str) -> Diagnostic:
    remedy = f"on {where}: `timedatectl set-ntp true`"
    found = failure if abs(ahead) > MUCH else warning
    return found(name, finding, detail, remedy)


def _by(ahead: float) -> str:
    by = timedelta(seconds=round(abs(ahead), 1 if abs(ahead) < MUCH else None))
    return f"{by} {'ahead of' if ahead > 0 else 'behind'}"
