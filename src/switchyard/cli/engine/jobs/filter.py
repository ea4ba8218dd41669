"""The options by which commands choose jobs, and the filter that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.durations import DURATION_HELP, parse_optional_duration
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import (
    LaneOption,
    TagFilterOption,
    check_lane,
    tags_of,
    with_options,
)

if TYPE_CHECKING:
    from switchyard.services.engine.records.requests import JobFilter


class StateName(StrEnum):
    """The states, for the command line; a test compares them with `records.states.State`."""

    SCHEDULED = "scheduled"
    JOINING = "joining"
    PAUSED = "paused"
    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ChosenJobs:
    """A filter whose times are seconds before now; `as_of` makes them moments."""

    job_filter: JobFilter

    def as_of(self, now: float) -> JobFilter:
        """Return the filter as of that moment, by the ledger's clock."""
        names = ("since", "until", "finished_since", "finished_until")
        ages = {name: getattr(self.job_filter, name) for name in names}
        return replace(
            self.job_filter, **{name: now - each for name, each in ages.items() if each is not None}
        )


def _job_filter(
    state: Annotated[StateName | None, typer.Option(help="Only jobs in this state.")] = None,
    lane: LaneOption = None,
    job_type: Annotated[
        str | None, typer.Option("--type", metavar="JOB_TYPE", help="Only this job type.")
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only jobs of this worker kind, for example ingest."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Only jobs of this source, as `jobs show` names it.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="ID", help="Only jobs that followed from this one.")
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="ID", help="Only the run that this job began.")
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only jobs that this backfill or rerun published."),
    ] = None,
    acted_by: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Only jobs that this bulk action has changed, or rerun as new jobs."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Only jobs created within this time, {DURATION_HELP}."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only jobs created longer than this time ago."),
    ] = None,
    finished_since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only jobs that ended within this time.")
    ] = None,
    finished_until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only jobs that ended longer than this time ago."),
    ] = None,
    slower_than: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only jobs whose last attempt took, or takes, longer than this."
        ),
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only jobs with this in error type, text or reason."),
    ] = None,
    tags: TagFilterOption = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="PATH=VALUE",
            help="Only jobs whose payload has this value there: document.id=42, ids.0=x.",
        ),
    ] = None,
) -> ChosenJobs:
    from switchyard.services.engine.records.requests import JobFilter, PayloadField
    from switchyard.services.engine.records.states import State

    try:
        field = None if payload is None else PayloadField.parse(payload)
    except ValueError as wrong:
        raise WrongUsage(f"--payload: {wrong}") from wrong
    return ChosenJobs(
        JobFilter(
            state=None if state is None else State(state.value),
            lane=check_lane(lane),
            job_type=job_type,
            worker=worker,
            source=source,
            parent_id=parent,
            pipeline=pipeline,
            operation_id=operation,
            acted_by=acted_by,
            since=parse_optional_duration(since),
            until=parse_optional_duration(until),
            finished_since=parse_optional_duration(finished_since),
            finished_until=parse_optional_duration(finished_until),
            slower_than=parse_optional_duration(slower_than),
            error=error,
            payload=field,
            tags=tags_of(tags),
        )
    )


with_job_filter = with_options(_job_filter, "chosen")
"""Give a command these options; it gets them as `chosen`, a ChosenJobs."""
