"""What the doctor asks of the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from switchyard.services.ledger import Ledger
from switchyard.services.ledger.leases import SCHEDULER
from switchyard.services.monitoring.check import Check
from switchyard.services.monitoring.worker_status import is_current, status_of
from switchyard.services.records import (
    DeadLetterFilter,
    Lacking,
    LedgerError,
    LedgerUnavailable,
    SchemaOutdated,
)
from switchyard.services.settings import Settings

HOLDER = "doctor"


async def ledger_checks(settings: Settings) -> AsyncIterator[Check]:
    """The ledger itself, the scheduler, the workers, the dead letters."""
    try:
        ledger = await Ledger.open(settings.ledger_url, check=True)
    except SchemaOutdated as error:
        yield Check("ledger", "wrong", str(error))
        return
    except LedgerUnavailable as error:
        yield Check("ledger", "wrong", str(error), "start the database; see JOBS_DATABASE_URL")
        return
    except LedgerError as error:
        yield Check("ledger", "wrong", str(error), "correct JOBS_DATABASE_URL")
        return
    try:
        yield Check("ledger", "ok", "reached, and its tables are of this version")
        yield await _scheduler(ledger)
        yield await _workers(ledger, settings)
        if lacking := await ledger.lacking():
            yield _lacking(lacking)
        yield await _dead(ledger)
    finally:
        await ledger.close()


async def _scheduler(ledger: Ledger) -> Check:
    # A lease of no length at all: only where nobody holds it do we get it, and nobody has to
    # wait until it is over.
    if await ledger.acquire_lease(SCHEDULER, HOLDER, 0):
        await ledger.release_lease(SCHEDULER, HOLDER)
        return Check(
            "scheduler",
            "wrong",
            "none is active: delayed jobs are not published, and what a crash left is not healed",
            "start `jobctl scheduler`",
        )
    return Check("scheduler", "ok", "one is active")


async def _workers(ledger: Ledger, settings: Settings) -> Check:
    now = ledger.clock.time()
    current = [worker for worker in await ledger.list_workers() if is_current(worker, now)]
    alive = [
        worker
        for worker in current
        if status_of(worker, takeover_after=settings.takeover_after, now=now) == "alive"
    ]
    silent = [worker for worker in current if worker not in alive]
    kinds = ", ".join(sorted({kind for worker in alive for kind in worker.kinds}))
    detail = f"{len(alive)} alive ({kinds})" if alive else "none is alive"
    if silent:
        names = ", ".join(
            f"{worker.worker_id} (for {timedelta(seconds=round(now - worker.beat_at))})"
            for worker in silent[:3]
        )
        return Check(
            "workers",
            "warning",
            f"{detail}; {len(silent)} fell silent within a day: {names}",
            "they died or lost the ledger: see their logs; their jobs go to other workers",
        )
    if not alive:
        return Check("workers", "wrong", detail, "start `jobctl worker all`")
    return Check("workers", "ok", detail)


def _lacking(lacking: list[Lacking]) -> Check:
    told = "; ".join(
        f"{each.worker_id} does not know {each.job_type} ({each.jobs:,} jobs sent on)"
        for each in lacking[:3]
    )
    return Check(
        "job types",
        "wrong",
        told + (f"; and {len(lacking) - 3} more" if len(lacking) > 3 else ""),
        "start those workers with the modules of these types: JOBS_MODULES, or --include",
    )


async def _dead(ledger: Ledger) -> Check:
    page = await ledger.list_dead(DeadLetterFilter(state="waiting"), limit=100)
    number = f"{len(page.items)}{' or more' if page.next_cursor else ''}"
    if page.items:
        remedy = "look: `jobctl dead list`; send back: `jobctl dead redrive`"
        return Check("dead letters", "warning", f"{number} wait for somebody", remedy)
    return Check("dead letters", "ok", "none waits")
