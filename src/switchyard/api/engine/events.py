"""`/events` and `/jobs/{id}/events`: stream job events, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import chain
from typing import Annotated, Any

from fastapi import Header, Query, Request

from switchyard.api.engine.jobs import JobIdInPath
from switchyard.api.http.event_stream import (
    HEARTBEAT,
    MEDIA_TYPE,
    EventStream,
    frame,
)
from switchyard.api.http.problems import responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import StreamSlot, needs
from switchyard.api.state import ApiState, BrokerSide, Shared
from switchyard.api.views.jobs import view_job_status
from switchyard.broker import patterns
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.job_events import ENDINGS, TEXT, JobEvent
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.states import FINISHED

router = Routes(tags=["events"])

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events until the client goes away; comments as signs of life.",
        "content": {
            MEDIA_TYPE: {
                "schema": {"type": "string"},
                "example": "id: 1763000000000000-0a1b2c3d4e5f\nevent: started\n"
                'data: {"event": "started", "job_id": "0b0f6c1e"}\n\n',
            }
        },
    }
}
LastEventId = Annotated[
    str | None,
    Header(
        max_length=100,
        description="Id of the last event that was received; events after it are sent first.",
    ),
]


@router.get(
    "/events",
    response_class=EventStream,
    status_code=200,
    dependencies=[needs(Scope.READ)],
    responses={**STREAM, **responses("no-broker", "too-many-streams")},
)
async def follow(
    state: Shared,
    request: Request,
    lane: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    job_type: Annotated[str | None, Query(pattern=patterns.NAME)] = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Stream events of all jobs, or of one lane or job type.

    The first event is `gap` if events after `Last-Event-ID` are no longer stored.
    """

    def matches(event: JobEvent) -> bool:
        if event.name == TEXT:
            return False  # for those who follow that job
        fields = event.fields
        return lane in (None, fields.get("lane")) and job_type in (None, fields.get("job_type"))

    broker = state.require_broker()
    frames = _stream_all(state, broker, matches, last_event_id)
    return EventStream(frames, closing=StreamSlot(request).leave)


@router.get(
    "/jobs/{job_id}/events",
    response_class=EventStream,
    status_code=200,
    dependencies=[needs(Scope.READ)],
    responses={**STREAM, **responses("not-found", "no-broker", "too-many-streams")},
)
async def follow_job(
    job_id: JobIdInPath, state: Shared, request: Request, last_event_id: LastEventId = None
) -> EventStream:
    """Stream the events of one job until it ends.

    The first event is `state`, the current state. The last is `end`, with the final state; close
    the connection then, because a browser would reconnect.
    """
    broker = state.require_broker()
    await state.ledger.job_reads.require(job_id)
    frames = _stream_job(state, broker, job_id, last_event_id)
    return EventStream(frames, closing=StreamSlot(request).leave)


async def _stream_all(
    state: ApiState,
    broker: BrokerSide,
    matches: Callable[[JobEvent], bool],
    last_id: str | None,
) -> AsyncGenerator[bytes, None]:
    with broker.feed.subscribe(matches) as subscription:
        missed = _missed_frames(broker, matches, last_id)  # later ones come by the subscription
        yield HEARTBEAT  # sends the answer's headers at once
        for each in missed:
            yield each
        while True:
            event = await subscription.next(state.settings.api_heartbeat)
            if event is not None:
                yield _to_frame(event)
            elif subscription.is_over:
                return
            else:
                yield HEARTBEAT


async def _stream_job(
    state: ApiState, broker: BrokerSide, job_id: str, last_id: str | None
) -> AsyncGenerator[bytes, None]:
    def matches(event: JobEvent) -> bool:
        return event.job_id == job_id

    with broker.feed.subscribe(matches) as subscription:
        missed = _missed_frames(broker, matches, last_id)
        # The job is looked up after subscribing, so that no event between the two is missed.
        status, ended = await _read_status(state, job_id)
        yield frame("state", status)
        for each in missed:
            yield each
        while not ended:
            event = await subscription.next(state.settings.api_heartbeat)
            if event is not None:
                yield _to_frame(event)
            elif subscription.is_over:
                return
            else:
                yield HEARTBEAT
            if event is None or event.name in ENDINGS:
                # Events are best effort: the ledger has the last word.
                try:
                    status, ended = await _read_status(state, job_id)
                except LedgerUnavailable:
                    continue  # asked again at the next heartbeat
        yield frame("end", status)


async def _read_status(state: ApiState, job_id: str) -> tuple[dict[str, Any], bool]:
    record = await state.ledger.job_reads.get(job_id)
    if record is None:  # its publish was refused meanwhile
        return {"job_id": job_id, "state": None}, True
    return view_job_status(record).model_dump(mode="json"), record.state in FINISHED


def _missed_frames(
    broker: BrokerSide, matches: Callable[[JobEvent], bool], last_id: str | None
) -> Iterator[bytes]:
    """Yield the frames of the events after `last_id`, each made when it is sent: the stored events
    are shared by all streams, so nothing is copied for this one beforehand."""
    if not last_id:  # empty from a client that has received no event
        return iter(())
    events, complete = broker.feed.since(last_id)
    gap = [] if complete else [frame("gap", {"after": last_id})]
    return chain(gap, (_to_frame(event) for event in events if matches(event)))


def _to_frame(event: JobEvent) -> bytes:
    return frame(event.name, event.fields, event_id=event.id)
