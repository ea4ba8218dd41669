"""`/admin/…`: lanes, workers and dead letters, for operators. Nothing here changes
anything."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query

from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Cursor, Limit, Routes
from switchyard.api.middleware.access import needs
from switchyard.api.models.dead import DeadLetterDetails, DeadLetterPage
from switchyard.api.models.lanes import LaneList, WorkerList
from switchyard.api.state import Shared
from switchyard.api.views.dead import view_letter, view_letter_details
from switchyard.api.views.system import view_lane_details, view_workers
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.ledger.short_ids import IdTable
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.states import DeadLetterState

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
    return await state.ledger.short_ids.full_id(IdTable.DEAD_LETTERS, letter_id)


LetterId = Annotated[str, Depends(_full_letter_id)]


@router.get("/lanes", responses=responses("broker-away", "no-broker"))
async def lanes(state: Shared) -> LaneList:
    """Show each lane's queues, and its jobs by state."""
    snapshot = await state.require_broker().pressure.snapshot()
    counts = await state.ledger.job_reads.counts()
    return LaneList(
        lanes=[view_lane_details(lane, counts.get(lane.name, {})) for lane in snapshot.lanes]
    )


@router.get("/workers")
async def workers(state: Shared) -> WorkerList:
    """List workers, latest start first."""
    view = view_workers(
        await state.ledger.workers.list_workers(),
        await state.ledger.workers.find_unknown_types(),
        takeover_after=state.settings.takeover_after,
        now=state.ledger.clock.time(),
    )
    return WorkerList(workers=view)


@router.get("/dead")
async def list_dead(
    state: Shared,
    letter_state: Annotated[DeadLetterState | None, Query(alias="state")] = None,
    reason: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    job_type: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    lane: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    error_type: Annotated[str | None, Query(pattern=patterns.PLAIN, max_length=200)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeadLetterPage:
    """List dead letters, newest first, as indexed by the scheduler."""
    letter_filter = DeadLetterFilter(
        state=letter_state, reason=reason, job_type=job_type, lane=lane, error_type=error_type
    )
    page = await state.ledger.dead_letters.list_dead(letter_filter, limit=limit, cursor=cursor)
    return DeadLetterPage(
        dead_letters=[view_letter(letter) for letter in page.items], next_cursor=page.next_cursor
    )


@router.get("/dead/{letter_id}", responses=responses("not-found"))
async def show_dead(letter_id: LetterId, state: Shared) -> DeadLetterDetails:
    """Show a dead letter with its headers and body."""
    letter = await state.ledger.dead_letters.require_dead(letter_id)
    job = None if letter.job_id is None else await state.ledger.job_reads.get(letter.id)
    edits = await state.ledger.redrives.letter_edits(letter_id=letter.id)
    return view_letter_details(state.registry, letter, job, edits)
