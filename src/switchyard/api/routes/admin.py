"""`/admin/…`: lanes, workers and dead letters, for operators. Nothing here changes anything."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from switchyard.api.entry.access import needs
from switchyard.api.http.problems import Problem, responses
from switchyard.api.models import jobs as models
from switchyard.api.routes.pressure import QueueView, queue_view
from switchyard.api.state import State
from switchyard.services.access.api_keys import Scope
from switchyard.services.monitoring.lane_pressure import Pressure
from switchyard.services.monitoring.worker_status import status_of
from switchyard.services.records import DeadLetter, DeadLetterFilter, DeadLetterState

router = APIRouter(prefix="/admin", tags=["admin"], dependencies=[needs(Scope.ADMIN)])

LetterId = Annotated[str, Path(pattern=models.JOB_ID)]


class LaneReport(BaseModel):
    """A lane, its queues, and its jobs by state."""

    lane: str
    pressure: Pressure
    queues: list[QueueView]
    jobs: dict[str, int] = Field(examples=[{"queued": 3, "running": 2}])


class LaneReports(BaseModel):
    lanes: list[LaneReport]


class WorkerView(BaseModel):
    """A worker process."""

    worker_id: str
    status: str = Field(
        description="alive, silent (no sign of life: it died, or lost the ledger) or stopped."
    )
    kinds: list[str]
    lanes: list[str]
    host: str
    pid: int
    concurrency: int
    started_at: datetime | None
    beat_at: datetime | None
    stopped_at: datetime | None


class Workers(BaseModel):
    workers: list[WorkerView]


class DeadLetterView(BaseModel):
    """A job that was given up, as the index knows it."""

    id: str
    job_id: str | None
    job_type: str | None
    lane: str | None
    routing_key: str | None
    worker: str | None
    reason: str = Field(examples=["exhausted"])
    error_type: str | None
    error_message: str | None
    attempts: int
    redrives: int
    copies: int = Field(description="Letters of this id since it last began to wait.")
    state: str = Field(description="waiting, redriven, purged or dropped.")
    first_at: datetime | None
    dead_at: datetime | None
    updated_at: datetime | None


class DeadLetterDetails(DeadLetterView):
    """A dead letter with all that it carries."""

    traceback: str | None
    headers: dict[str, Any]
    body: str = Field(description="As it was on the broker; what is not UTF-8 is replaced.")


class DeadLetterPage(BaseModel):
    """Part of a listing."""

    dead_letters: list[DeadLetterView]
    next_cursor: str | None


@router.get("/lanes", responses=responses("broker-away", "no-broker"))
async def lanes(state: State) -> LaneReports:
    """Show each lane's queues, and its jobs by state."""
    snapshot = await state.require_broker().pressure.snapshot()
    counts = await state.ledger.counts()
    return LaneReports(
        lanes=[
            LaneReport(
                lane=lane.name,
                pressure=lane.pressure,
                queues=[queue_view(queue) for queue in lane.queues],
                jobs={str(key): count for key, count in counts.get(lane.name, {}).items()},
            )
            for lane in snapshot.lanes
        ]
    )


@router.get("/workers")
async def workers(state: State) -> Workers:
    """List the workers, those that started last first."""
    now, takeover_after = time.time(), state.settings.takeover_after
    return Workers(
        workers=[
            WorkerView(
                worker_id=worker.worker_id,
                status=status_of(worker, takeover_after=takeover_after, now=now),
                kinds=list(worker.kinds),
                lanes=list(worker.lanes),
                host=worker.host,
                pid=worker.pid,
                concurrency=worker.concurrency,
                started_at=models.moment(worker.started_at),
                beat_at=models.moment(worker.beat_at),
                stopped_at=models.moment(worker.stopped_at),
            )
            for worker in await state.ledger.list_workers()
        ]
    )


@router.get("/dead")
async def list_dead(
    state: State,
    letter_state: Annotated[DeadLetterState | None, Query(alias="state")] = None,
    reason: Annotated[str | None, Query(pattern=models.NAME)] = None,
    job_type: Annotated[str | None, Query(pattern=models.NAME)] = None,
    lane: Annotated[str | None, Query(pattern=models.NAME)] = None,
    error_type: Annotated[str | None, Query(pattern=models.PLAIN, max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(pattern=models.CURSOR, max_length=500)] = None,
) -> DeadLetterPage:
    """List dead letters, the latest first, as the scheduler has indexed them."""
    wanted = DeadLetterFilter(
        state=letter_state, reason=reason, job_type=job_type, lane=lane, error_type=error_type
    )
    page = await state.ledger.list_dead(wanted, limit=limit, cursor=cursor)
    return DeadLetterPage(
        dead_letters=[DeadLetterView(**_fields(letter)) for letter in page.items],
        next_cursor=page.next_cursor,
    )


@router.get("/dead/{letter_id}", responses=responses("not-found"))
async def show_dead(letter_id: LetterId, state: State) -> DeadLetterDetails:
    """Show a dead letter with its headers and body."""
    letter = await state.ledger.get_dead(letter_id)
    if letter is None:
        raise Problem("not-found", f"there is no dead letter {letter_id}")
    return DeadLetterDetails(
        **_fields(letter),
        traceback=letter.traceback,
        headers=dict(letter.headers),
        body=letter.body.decode("utf-8", "replace"),
    )


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        name: models.moment(getattr(letter, name))
        if name.endswith("_at")
        else getattr(letter, name)
        for name in DeadLetterView.model_fields
    }
