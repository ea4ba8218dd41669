"""`/admin/…`: lanes, workers, index and dead letters, for operators. Nothing here changes
anything."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from switchyard.api.engine.pressure import queue_view
from switchyard.api.http.problems import Problem, responses, try_later
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.base import moment
from switchyard.api.models.dead import DeadLetterDetails, DeadLetterPage, DeadLetterView
from switchyard.api.models.lanes import (
    GenerationView,
    IndexView,
    LaneDetails,
    LaneList,
    WorkerList,
    WorkerView,
)
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.ledger.short_ids import Among
from switchyard.services.engine.monitoring.worker_status import status_of
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.states import DeadLetterState
from switchyard.services.pipeline.index.opening import report
from switchyard.services.pipeline.index.searching import answered_soon

router = Routes(prefix="/admin", tags=["admin"], dependencies=[needs(Scope.ADMIN)])


async def _full_letter_id(
    letter_id: Annotated[
        str,
        Path(
            pattern=patterns.JOB_ID,
            description="The dead letter's id, or its first characters, at least six.",
        ),
    ],
    state: Shared,
) -> str:
    return await state.ledger.short_ids.full_id(Among.DEAD_LETTERS, letter_id)


LetterId = Annotated[str, Depends(_full_letter_id)]


@router.get("/lanes", responses=responses("broker-away", "no-broker"))
async def lanes(state: Shared) -> LaneList:
    """Show each lane's queues, and its jobs by state."""
    snapshot = await state.require_broker().pressure.snapshot()
    counts = await state.ledger.job_reads.counts()
    return LaneList(
        lanes=[
            LaneDetails(
                lane=lane.name,
                pressure=lane.pressure,
                queues=[queue_view(queue) for queue in lane.queues],
                jobs={str(key): count for key, count in counts.get(lane.name, {}).items()},
            )
            for lane in snapshot.lanes
        ]
    )


@router.get("/workers")
async def workers(state: Shared) -> WorkerList:
    """List workers, latest start first."""
    takeover_after = state.settings.takeover_after
    found = await state.ledger.workers.list_workers()
    now = state.ledger.clock.time()
    return WorkerList(
        workers=[
            WorkerView(
                worker_id=worker.worker_id,
                status=status_of(worker, takeover_after=takeover_after, now=now),
                kinds=list(worker.kinds),
                lanes=list(worker.lanes),
                host=worker.host,
                pid=worker.pid,
                concurrency=worker.concurrency,
                started_at=moment(worker.started_at),
                beat_at=moment(worker.beat_at),
                stopped_at=moment(worker.stopped_at),
            )
            for worker in found
        ]
    )


@router.get("/index", responses=responses("search-away"))
async def index(state: Shared, request: Request) -> IndexView:
    """Show the location of the search index, its embedder, and the progress of a rebuild."""
    try:
        async with answered_soon(state.index):
            generations = await report(state.index)
        wanted = state.index.configured.embedder
    except (RetryableError, PermanentError, TimeoutError) as error:
        request.state.trouble = f"{type(error).__name__}: {error}"
        raise try_later("search-away", "the index can't be read: the log says why") from error
    return IndexView(
        where=state.index.store.location,
        wanted=wanted,
        generations=[
            GenerationView(
                role=each.role,
                table=each.generation.table,
                embedder=each.generation.embedder,
                dimensions=each.generation.dimensions,
                chunks=each.chunks,
            )
            for each in generations
        ],
    )


@router.get("/dead")
async def list_dead(
    state: Shared,
    letter_state: Annotated[DeadLetterState | None, Query(alias="state")] = None,
    reason: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    job_type: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    lane: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    error_type: Annotated[str | None, Query(pattern=patterns.PLAIN, max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    cursor: Annotated[str | None, Query(pattern=patterns.CURSOR, max_length=500)] = None,
) -> DeadLetterPage:
    """List dead letters, newest first, as indexed by the scheduler."""
    wanted = DeadLetterFilter(
        state=letter_state, reason=reason, job_type=job_type, lane=lane, error_type=error_type
    )
    page = await state.ledger.dead_letters.list_dead(wanted, limit=limit, cursor=cursor)
    return DeadLetterPage(
        dead_letters=[DeadLetterView(**_fields(letter)) for letter in page.items],
        next_cursor=page.next_cursor,
    )


@router.get("/dead/{letter_id}", responses=responses("not-found"))
async def show_dead(letter_id: LetterId, state: Shared) -> DeadLetterDetails:
    """Show a dead letter with its headers and body."""
    letter = await state.ledger.dead_letters.get_dead(letter_id)
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
        name: moment(getattr(letter, name)) if name.endswith("_at") else getattr(letter, name)
        for name in DeadLetterView.model_fields
    }
