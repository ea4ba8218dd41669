"""Schedules, lanes, workers, limits and keys, for the API and for `jobctl … --json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from switchyard.api.models.lanes import (
    LaneDetails,
    LaneReportView,
    LaneView,
    QueueDetails,
    QueueView,
    WorkerView,
)
from switchyard.api.models.schedules import FiringView, ScheduleView
from switchyard.api.models.service import KeyLimitsView, KeyView, LimitView
from switchyard.services.engine.monitoring.worker_status import status_of
from switchyard.services.engine.records.states import Pressure, fullest

if TYPE_CHECKING:
    from switchyard.services.engine.monitoring.lane_pressure import (
        LaneDepth,
        QueueDepth,
        Snapshot,
    )
    from switchyard.services.engine.monitoring.lane_report import LanesReport, QueueReport
    from switchyard.services.engine.records.limits import LimitReport
    from switchyard.services.engine.records.results import UnknownTypeReport, WorkerRecord
    from switchyard.services.engine.records.schedules import Firing, ScheduleRecord
    from switchyard.services.engine.records.states import State
    from switchyard.services.engine.records.system import ApiKeyRecord


def view_lane(lane: LaneDepth) -> LaneView:
    """Show how full a lane is."""
    queues = [QueueView.from_record(each, queue=each.name) for each in lane.queues]
    return LaneView.from_record(lane, lane=lane.name, queues=queues)


def view_lane_details(lane: LaneDepth, jobs: Mapping[State, int]) -> LaneDetails:
    """Show how full a lane is, and its jobs by state."""
    return LaneDetails.from_record(view_lane(lane), jobs=jobs)


def view_lane_reports(report: LanesReport, snapshot: Snapshot) -> list[LaneReportView]:
    """Show the lanes with what only the management API knows, and the dead letters."""
    views = []
    for lane in report.lanes:
        queues = [_view_queue_report(each, snapshot.queue(each.name)) for each in lane.queues]
        views.append(
            LaneReportView.from_record(
                lane,
                lane=lane.name,
                queues=queues,
                pressure=fullest(each.pressure for each in queues),
            )
        )
    return views


def _view_queue_report(queue: QueueReport, depth: QueueDepth | None) -> QueueDetails:
    """`depth` is None for the dead letters, which are never full."""
    return QueueDetails.from_record(
        queue,
        queue=queue.name,
        ready=queue.ready if queue.exists else None,
        pressure=Pressure.OK if depth is None else depth.pressure,
        put_off=0 if depth is None else depth.put_off,
    )


def view_workers(
    workers: Iterable[WorkerRecord],
    unknown_types: Iterable[UnknownTypeReport],
    *,
    takeover_after: float,
    now: float,
) -> list[WorkerView]:
    """Show workers, with the types of jobs that they get and do not know. Times in seconds."""
    unknown: dict[str, list[str]] = {}
    for each in unknown_types:
        unknown.setdefault(each.worker_id, []).append(each.job_type)
    return [
        WorkerView.from_record(
            worker,
            status=status_of(worker, takeover_after=takeover_after, now=now),
            unknown_types=unknown.get(worker.worker_id, []),
        )
        for worker in workers
    ]


def view_limit(report: LimitReport) -> LimitView:
    """Show a named limit as it is now."""
    return LimitView.from_record(
        report,
        concurrency=report.size.concurrency,
        per_minute=report.size.per_minute,
        tokens_per_minute=report.size.tokens_per_minute,
    )


def view_key(record: ApiKeyRecord) -> KeyView:
    """Show a key of the HTTP API, without its hash."""
    limits = None if record.limits is None else KeyLimitsView.from_record(record.limits)
    return KeyView.from_record(record, limits=limits)


def view_schedule(record: ScheduleRecord, last: Firing | None = None) -> ScheduleView:
    """Show a schedule with the result of its latest due time."""
    return ScheduleView.from_record(record, job=record.routing_key, last=last)


def view_firing(firing: Firing) -> FiringView:
    """Show the result of a due time."""
    return FiringView.from_record(firing)
