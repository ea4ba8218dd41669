"""Whether ledger and broker are of one system."""

from __future__ import annotations

from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.topology.system_marker import MarkHidden
from switchyard.services.engine.identity.broker import read_broker, require_same_system
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok, warning
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext


async def system(system: DoctorContext) -> list[Diagnostic]:
    """Whose the broker is, and whether the ledger is the newest of it."""
    ledger = system.need_ledger()
    ours = await ledger.system.system()
    try:
        mark = await read_broker(system.settings)
        await require_same_system(system.settings, ledger)
    except MarkHidden as error:
        remedy = "permit the user of JOBS_AMQP_URL to configure, read and write jobs.system"
        return [warning("system", Finding.SYSTEM_UNKNOWN, str(error), remedy)]
    except WrongSystem as error:
        remedy = "correct the address that is wrong: `jobctl system show` has both side by side"
        return [failure("system", Finding.SYSTEM_OTHER, str(error), remedy)]
    except BrokerUnavailable:
        return []  # the check of the broker says so
    if mark is None:
        detail = f"the broker is not marked as that of the system {ours}: others could use it"
        return [warning("system", Finding.SYSTEM_UNMARKED, detail, "`jobctl topology apply`")]
    return [ok("system", f"ledger and broker are of {ours}")]
