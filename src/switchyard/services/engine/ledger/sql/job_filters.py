"""Translate job filters into SQL, and find the spans of time in which matching jobs are looked
for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    asc,
    case,
    desc,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql

from switchyard.services.engine.ledger.sql.dialect import among_in
from switchyard.services.engine.ledger.sql.paging import continued
from switchyard.services.engine.ledger.sql.tables import job_actions, job_tags, jobs
from switchyard.services.engine.records.requests import JobFilter, PayloadField
from switchyard.services.engine.records.states import State


def lanes_in(connection: Connection, state: State) -> list[str]:
    """Return the lanes that have jobs in this state; each lane costs one look into the index."""
    lanes: list[str] = []
    query = select(func.min(jobs.c.lane)).where(jobs.c.state == state)
    lane = connection.scalar(query)
    while lane is not None:
        lanes.append(lane)
        lane = connection.scalar(query.where(jobs.c.lane > lane))
    return lanes


def find_examined_since(
    connection: Connection, job_filter: JobFilter, number: int, cursor: str | None
) -> float | None:
    """Return when the `number`th of the jobs after the cursor was made, newest first. Only the
    filter's state, and with it its lane, are regarded; the jobs need not match the rest. None if
    that is before the filter's own time, or there are fewer jobs. Raises InvalidCursor."""
    at, key = jobs.c.created_at, jobs.c.id
    times = continued(select(at), at, key, cursor)
    if job_filter.until is not None:
        times = times.where(at < job_filter.until)
    parts = None
    if job_filter.state not in (None, State.SUCCEEDED):  # others are few
        state_filter = JobFilter(state=job_filter.state, lane=job_filter.lane)
        parts = state_lane_conditions(connection, state_filter)
    made_at = _nth_time(connection, times, parts, desc, number)
    if made_at is None or made_at <= (job_filter.since or 0.0):
        return None
    return made_at


def find_span_end(
    connection: Connection,
    states: Collection[State],
    *,
    after: float,
    until: float | None,
    number: int,
) -> float | None:
    """Return when the `number`th of the jobs in these states was made, counted from the time
    `after`, and up to `until`; None if there are fewer."""
    at = jobs.c.created_at
    times = select(at).where(at > after)
    if until is not None:
        times = times.where(at < until)
    parts = None
    if State.SUCCEEDED not in states:  # others are few
        parts = _state_lane_pairs(connection, states, None)
    return _nth_time(connection, times, parts, asc, number)


def _nth_time(
    connection: Connection,
    times: Select[Any],
    parts: Sequence[ColumnElement[bool]] | None,
    direction: Callable[[ColumnElement[float]], ColumnElement[float]],
    number: int,
) -> float | None:
    """Return the `number`th of the times in that direction; None where there are fewer. `parts`:
    see `state_lane_conditions`."""
    at: ColumnElement[float] = jobs.c.created_at
    if parts is not None:
        first = (
            times.where(part).order_by(direction(at)).limit(number) for part in parts or [false()]
        )
        merged = union_all(*(select(each.subquery()) for each in first)).subquery()
        times, at = select(merged.c.created_at), merged.c.created_at
    nth: float | None = connection.scalar(times.order_by(direction(at)).offset(number - 1).limit(1))
    return nth


def state_lane_conditions(
    connection: Connection, job_filter: JobFilter
) -> list[ColumnElement[bool]] | None:
    """Return a condition for each pair of state and lane that the jobs may have: for each, the
    index of states has the jobs in the order of age. None where neither is given, or where another
    index finds the jobs."""
    if job_filter.state is None and job_filter.lane is None:
        return None
    if job_filter.is_indexed:
        return None
    states = [job_filter.state] if job_filter.state else State
    return _state_lane_pairs(connection, states, job_filter.lane)


def _state_lane_pairs(
    connection: Connection, states: Iterable[State], lane: str | None
) -> list[ColumnElement[bool]]:
    """Return a condition for each pair of state and lane; without a `lane`, for those that have
    jobs."""
    return [
        (jobs.c.state == state) & (jobs.c.lane == name)
        for state in states
        for name in ([lane] if lane else lanes_in(connection, state))
    ]


def filter_jobs(query: Select[Any], job_filter: JobFilter, now: float, dialect: str) -> Select[Any]:
    columns = ("state", "lane", "job_type", "worker", "source", "parent_id", "operation_id")
    for name in columns:
        value = getattr(job_filter, name)
        if value is None:
            continue
        column: ColumnElement[Any] = jobs.c[name]
        if value is State.SUCCEEDED and job_filter.lane is None:
            # Nearly all jobs: walk them by age, for the index of states would have to sort them.
            column = func.coalesce(column, "")
        query = query.where(column == value)
    for number, (name, value) in enumerate(job_filter.tags.items()):
        condition = (job_tags.c.name == name) & (job_tags.c.value == value)
        if number == 0:  # by its index, the jobs come in the order of their age
            query = query.join(job_tags, (job_tags.c.job_id == jobs.c.id) & condition)
        else:
            other = job_tags.alias()
            has_tag = (other.c.job_id == jobs.c.id) & (other.c.name == name)
            query = query.where(exists().where(has_tag, other.c.value == value))
    if job_filter.ids:
        query = query.where(among_in(dialect, jobs.c.id, job_filter.ids))
    if job_filter.acted_by is not None:
        condition = (job_actions.c.operation_id == job_filter.acted_by) & (
            job_actions.c.job_id == jobs.c.id
        )
        query = query.where(exists().where(condition))
    if job_filter.pipeline is not None:
        query = query.where(
            or_(jobs.c.id == job_filter.pipeline, jobs.c.pipeline == job_filter.pipeline)
        )
    for time_column, since, until in (
        (jobs.c.created_at, job_filter.since, job_filter.until),
        (jobs.c.finished_at, job_filter.finished_since, job_filter.finished_until),
    ):
        if since is not None:
            query = query.where(time_column >= since)
        if until is not None:
            query = query.where(time_column < until)
    if job_filter.slower_than is not None:
        ended_at = case((jobs.c.state == State.RUNNING, now), else_=jobs.c.finished_at)
        query = query.where(ended_at - jobs.c.started_at > job_filter.slower_than)
    if job_filter.error is not None:
        texts = (jobs.c.error_type, jobs.c.error_message, jobs.c.reason)
        conditions = [each.icontains(job_filter.error, autoescape=True) for each in texts]
        query = query.where(or_(*conditions))
    if job_filter.payload is not None:
        query = query.where(_payload_value(job_filter.payload, dialect) == job_filter.payload.value)
    return query


def sort_columns(job_filter: JobFilter) -> tuple[ColumnElement[float], ColumnElement[str]]:
    """Return when a job was made, and its id: the columns that order `filter_jobs`."""
    if job_filter.tags:
        return job_tags.c.created_at, job_tags.c.job_id
    if job_filter.operation_id is not None or job_filter.acted_by is not None:
        # `+ 0.0` keeps PostgreSQL from walking the index of all jobs' ages: it expects these jobs
        # to be spread evenly in it, but they may be far back.
        return jobs.c.created_at + 0.0, jobs.c.id
    return jobs.c.created_at, jobs.c.id


def in_states(states: Collection[State]) -> ColumnElement[bool]:
    column: ColumnElement[Any] = jobs.c.state
    if State.SUCCEEDED in states:
        # Nearly all jobs: walk them by age, as `filter_jobs` does.
        column = func.coalesce(column, "")
    return column.in_(sorted(states))


def _payload_value(payload_field: PayloadField, dialect: str) -> ColumnElement[str]:
    """Return the value of that field of a payload as text; NULL where there is none, and where the
    database can't read the payload."""
    payload = jobs.c.payload
    if dialect == "sqlite":
        # Whether a number is a key or a place in a list, only the payload knows.
        places = "".join(
            f"[{key}]" if key.isdecimal() else f'."{key}"' for key in payload_field.keys
        )
        names = "".join(f'."{key}"' for key in payload_field.keys)
        value = func.coalesce(*(_sqlite_value(f"${path}") for path in (places, names)))
        return case((func.json_valid(payload) == 1, value))
    is_readable = ~payload.regexp_match(r"\\u(0000|[dD][89a-fA-F])")
    path = literal(list(payload_field.keys), postgresql.ARRAY(Text))
    return case((is_readable, sql_cast(payload, postgresql.JSON).op("#>>")(path)))


def _sqlite_value(path: str) -> ColumnElement[str]:
    value, kind = func.json_extract(jobs.c.payload, path), func.json_type(jobs.c.payload, path)
    words = case((kind == "true", "true"), (kind == "false", "false"), else_=value)
    return sql_cast(words, Text)
