"""Jobs that ended long ago, written into a ledger."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from switchyard.services.common.durations import DAY
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.records.states import State
from tests.support.made import message, new_job

ENDED = (State.SUCCEEDED, State.CANCELLED, State.DEAD)


async def record_ended_job(
    ledger: Ledger,
    job_id: str,
    *,
    days: float = 40.0,
    state: State = State.SUCCEEDED,
    lane: str = "hot",
    **changes: Any,
) -> None:
    """Record a job that ended so many days ago by the ledger's clock."""
    await record_old_job(ledger, job_id, state=state, days=days, lane=lane, **changes)


async def record_old_job(
    ledger: Ledger, job_id: str, *, state: State, days: float, lane: str = "hot", **changes: Any
) -> None:
    """Record a job that has been in this state for so many days by the ledger's clock."""
    columns: dict[str, Any] = {
        name: changes.pop(name)
        for name in ("parent_id", "operation_id", "job_type")
        if name in changes
    }
    await ledger.jobs.record(new_job(message(job_id), lane=lane, **changes))
    ended_at = ledger.clock.time() - days * DAY
    times: dict[str, float | None] = {
        "created_at": ended_at - 1,
        "updated_at": ended_at,
        "finished_at": ended_at,
    }
    if state not in ENDED:
        times["finished_at"] = None
    values: dict[str, Any] = {"state": state.value, **times, **columns}
    await ledger.core.database.write(
        lambda connection: connection.execute(
            jobs.update().where(jobs.c.id == job_id).values(values)
        )
    )


async def read_job_ids(ledger: Ledger) -> set[str]:
    return await ledger.core.database.read(
        lambda connection: set(connection.scalars(select(jobs.c.id)))
    )
