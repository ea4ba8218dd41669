"""Reading jobs: one, many, counts, a pipeline; and what the scheduler has to publish."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    Text,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql

from switchyard.broker.lanes import LANES
from switchyard.services.engine.ledger.sql.dialect import (
    among,
    among_of,
    clock,
    keys_condition,
    keys_parameter,
)
from switchyard.services.engine.ledger.sql.paging import continued, cursor_before, fetch_page
from switchyard.services.engine.ledger.sql.repository import LedgerCore, Repository, read
from switchyard.services.engine.ledger.sql.tables import (
    IS_DEAD,
    attempts,
    dead_letters,
    job_actions,
    job_checkpoints,
    job_progress,
    job_tags,
    jobs,
    workers,
)
from switchyard.services.engine.records.errors import UnknownJob
from switchyard.services.engine.records.progress import ProgressRecord
from switchyard.services.engine.records.requests import JobFilter, PayloadField
from switchyard.services.engine.records.results import (
    TIMED_OUT,
    AttemptRecord,
    JobListing,
    JobRecord,
    JobSummary,
)
from switchyard.services.engine.records.states import FINISHED, IN_QUEUES, OPEN, State

_LONG_COLUMNS = ("metadata", "payload", "result", "fingerprint")
_URGENCY = case({lane.name: rank for rank, lane in enumerate(LANES)}, value=jobs.c.lane, else_=0)
"""Rank of a job's lane; 0 is the most urgent one."""
_SUMMARY = tuple(column for column in jobs.c if column.name not in _LONG_COLUMNS)
_PROGRESS = (job_progress.c.fraction, job_progress.c.note, job_progress.c.reported_at)
_WITH_PROGRESS = jobs.outerjoin(
    # Only the last attempt's: the progress of an earlier one no longer holds.
    job_progress,
    (job_progress.c.job_id == jobs.c.id) & (job_progress.c.claim_id == jobs.c.claim_id),
)


_CHECKPOINT_AT = (
    select(job_checkpoints.c.kept_at)
    .where(job_checkpoints.c.job_id == jobs.c.id)
    .scalar_subquery()
    .label("kept_at")
)
# Made once: each request of a client waits for them.
_JOB_QUERY = (
    select(jobs, *_PROGRESS, _CHECKPOINT_AT)
    .select_from(_WITH_PROGRESS)
    .where(jobs.c.id == bindparam("job"))
)
_ATTEMPTS_QUERY = (
    select(attempts).where(attempts.c.job_id == bindparam("job")).order_by(attempts.c.id)
)

COUNT_SECONDS = 0.1
COUNT_PAUSE_RATIO = 20.0
"""A count of ended jobs is reused for this many times its duration: so counting takes at most about
a twentieth of the time."""
MANY_ENDED = 100_000
"""Fewer ended jobs are counted each time, even slowly: then only the machine is busy with other
work."""
EXAMINED_JOBS = 20_000
"""Jobs that are examined for one page of those that no index finds: some hundredths of a second
instead of many seconds where there are millions."""
EXAMINED_FIRST = 10
"""How many times the length of a page is examined at first."""
_IDS_PAGE = 10_000
"""Ids that are read in one transaction."""


class JobReads(Repository):
    """Reads that wait for no writer. All methods raise LedgerUnavailable when the database is
    away."""

    def __init__(self, core: LedgerCore) -> None:
        super().__init__(core)
        self._ended: dict[str, dict[State, int]] = {}
        """Number of ended jobs at the last count, by lane and state."""
        self._count_again_at = float("-inf")

    @read
    def get(self, connection: Connection, job_id: str) -> JobRecord | None:
        """Return the job with its timeline; None for an unknown id."""
        row = connection.execute(_JOB_QUERY, {"job": job_id}).one_or_none()
        if row is None:
            return None
        ended = connection.execute(_ATTEMPTS_QUERY, {"job": job_id})
        return to_record(row, tuple(_attempt(each) for each in ended))

    async def require(self, job_id: str) -> JobRecord:
        """Return the job with its timeline. Raises UnknownJob."""
        job = await self.get(job_id)
        if job is None:
            raise UnknownJob(job_id)
        return job

    @read
    def states(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, State]:
        """Return the states of those jobs that the ledger knows."""
        dialect = self._database.dialect
        query = text(f"SELECT id, state FROM jobs WHERE {keys_condition(dialect, 'id')}")
        keys = keys_parameter(dialect, job_ids)
        return {row.id: State(row.state) for row in connection.execute(query, keys)}

    async def ids_in_queues(self) -> AsyncIterator[str]:
        """Yield the ids of the jobs that the broker holds according to the ledger, in ascending
        order."""
        after: str | None = ""
        while after is not None:
            query = (
                select(jobs.c.id)
                .where(jobs.c.state.in_([state.value for state in IN_QUEUES]), jobs.c.id > after)
                .order_by(jobs.c.id)
                .limit(_IDS_PAGE)
            )
            page = await self._database.read(partial(_fetch_ids, query=query))
            for each in page:
                yield each
            after = page[-1] if len(page) == _IDS_PAGE else None

    async def list_jobs(
        self,
        job_filter: JobFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        examined: int | None = EXAMINED_JOBS,
    ) -> JobListing:
        """List jobs, newest first. Raises ValueError for a limit outside 1 to 1,000, or a cursor
        that no earlier page gave.

        Where no index finds the jobs that match, a page has those among the next `examined` jobs;
        with None, all jobs are examined.
        """
        job_filter = job_filter or JobFilter()
        at, key = _sort_columns(job_filter)
        now, dialect = self.clock.time(), self._database.dialect

        def read_page(connection: Connection, number: int | None) -> JobListing:
            bound = None
            wanted = job_filter
            if number is not None:
                bound = _find_bound(connection, job_filter, number, cursor)
            if bound is not None:
                wanted = replace(job_filter, since=bound)
            parts = _lanes_in_states(connection, wanted)
            rest = wanted if parts is None else replace(wanted, state=None, lane=None)
            query = _filter_jobs(_summaries(), rest, now, dialect)
            page = fetch_page(connection, query, at, key, _summary, limit, cursor, parts=parts)
            following = page.next_cursor
            if following is None and bound is not None:
                following = cursor_before(bound)
            return JobListing(_with_tags(connection, page.items), following, bound)

        def work(connection: Connection) -> JobListing:
            if examined is None or not job_filter.is_scan:
                return read_page(connection, None)
            # Even to count 20,000 jobs takes longer than to find the usual ones, of which a page
            # of the newest jobs is full.
            first = min(EXAMINED_FIRST * limit, examined)
            page = read_page(connection, first)
            if page.examined_since is None or len(page.items) == limit or first == examined:
                return page
            return read_page(connection, examined)

        return await self._database.read(work)

    @read
    def find_bound(
        self, connection: Connection, job_filter: JobFilter, number: int
    ) -> float | None:
        """Return since when jobs are examined where `list_jobs` examines `number` for its first
        page; None where that is all that the filter leaves."""
        return _find_bound(connection, job_filter, number, None)

    @read
    def matching_jobs(
        self,
        connection: Connection,
        job_filter: JobFilter,
        states: Collection[State],
        *,
        after: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[JobSummary]:
        """Return jobs that match the filter and are in one of the states, the oldest first. `after`
        is the position of the last job of the page before: when it was made, and its id."""
        query = _filter_jobs(_summaries(), job_filter, self.clock.time(), self._database.dialect)
        query = query.where(_in_states(states))
        at, key = _sort_columns(job_filter)
        if after is not None:
            query = query.where(at >= after[0], tuple_(at, key) > tuple_(*after))
        query = query.order_by(at, key).limit(limit)
        return [_summary(row) for row in connection.execute(query)]

    @read
    def count_matching(
        self,
        connection: Connection,
        job_filter: JobFilter,
        states: Collection[State],
        *,
        at_most: int,
    ) -> int:
        """Count the jobs that match the filter and are in one of the states, up to `at_most`."""
        query = _filter_jobs(
            select(jobs.c.id), job_filter, self.clock.time(), self._database.dialect
        )
        matching = query.where(_in_states(states)).limit(at_most).subquery()
        return connection.scalar(select(func.count()).select_from(matching)) or 0

    @read
    def count_by_state(
        self, connection: Connection, job_filter: JobFilter, *, newest: int
    ) -> dict[State, int]:
        """Count the newest jobs that match the filter, `newest` at most, by state; the filter's own
        state is ignored."""
        query = _filter_jobs(
            select(jobs.c.state),
            replace(job_filter, state=None),
            self.clock.time(),
            self._database.dialect,
        )
        at, key = _sort_columns(job_filter)
        found = query.order_by(at.desc(), key.desc()).limit(newest).subquery()
        counted = select(found.c.state, func.count()).group_by(found.c.state)
        return {State(state): number for state, number in connection.execute(counted)}

    @read
    def open_by_state(self, connection: Connection, lane: str | None) -> dict[State, int]:
        """Count the jobs that have not ended by their states, of one lane or of all."""
        query = select(jobs.c.state, func.count()).where(jobs.c.state.in_(OPEN))
        if lane is not None:
            query = query.where(jobs.c.lane == lane)
        counted = connection.execute(query.group_by(jobs.c.state))
        return {State(state): number for state, number in counted}

    @read
    def records(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Return the records of these jobs, without their timelines, by id."""
        query = select(jobs).where(among(connection, jobs.c.id, job_ids))
        return {row.id: to_record(row) for row in connection.execute(query)}

    @read
    def counts(self, connection: Connection) -> dict[str, dict[State, int]]:
        """Count jobs by lane and state; states without jobs are left out.

        Counting ten million ended jobs takes seconds. So where there are MANY_ENDED and counting
        them takes more than COUNT_SECONDS, the result is reused for COUNT_PAUSE_RATIO times as
        long.
        """
        began = time.monotonic()
        counts = _count_states(connection, OPEN)
        if began >= self._count_again_at:
            self._ended = _count_states(connection, sorted(FINISHED))
            ended_at = time.monotonic()
            took = ended_at - began
            number = sum(sum(by_state.values()) for by_state in self._ended.values())
            if took > COUNT_SECONDS and number >= MANY_ENDED:
                self._count_again_at = ended_at + took * COUNT_PAUSE_RATIO
        for lane, numbers in self._ended.items():
            counts.setdefault(lane, {}).update(numbers)
        return counts

    @read
    def running_by_worker(self, connection: Connection) -> dict[str | None, int]:
        """Count the jobs that run now, by worker."""
        query = (
            select(jobs.c.worker_id, func.count())
            .where(jobs.c.state == State.RUNNING)
            .group_by(jobs.c.worker_id)
        )
        return {row[0]: row[1] for row in connection.execute(query)}

    @read
    def timed_out(self, connection: Connection, since: float) -> dict[str, int]:
        """Count, by type, the jobs that have exceeded their time limit since then, and that wait
        for another attempt or are dead; the largest number first."""
        late = (jobs.c.error_type == TIMED_OUT) & (jobs.c.updated_at >= since)
        query = select(jobs.c.job_type, func.count()).where(late).group_by(jobs.c.job_type)
        found: Counter[str] = Counter()
        for condition in (jobs.c.state == State.RETRYING, IS_DEAD):  # each has an index
            for job_type, number in connection.execute(query.where(condition)):
                found[job_type] += number
        return dict(found.most_common())

    async def unheeded_cancels(self, before: float, limit: int) -> list[JobSummary]:
        """Return jobs that still run although their cancellation was requested before that time;
        the oldest request first."""
        query = (
            _summaries()
            .where(jobs.c.state == State.RUNNING, jobs.c.cancel_asked_at < before)
            .order_by(jobs.c.cancel_asked_at, jobs.c.id)
            .limit(limit)
        )
        return await self._database.read(
            lambda connection: [_summary(row) for row in connection.execute(query)]
        )

    @read
    def pipeline(
        self, connection: Connection, pipeline_id: str, *, limit: int = 1_000
    ) -> list[JobSummary]:
        """Return the jobs of one run of a pipeline, oldest first, its first job included."""
        root = _summaries().where(jobs.c.id == pipeline_id)
        others = (
            _summaries()
            .where(jobs.c.pipeline == pipeline_id, jobs.c.id != pipeline_id)
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(limit)
        )
        rows = [*connection.execute(root), *connection.execute(others)]
        return [_summary(row) for row in rows]

    @read
    def run_heads(
        self, connection: Connection, job_ids: Collection[str], *, limit: int = 1_000
    ) -> dict[str, Hashable]:
        """Return a value by job id that changes whenever the job, its dead letter or another job of
        its run (`pipeline`) has changed, or a bulk action has done something with it. Cheap enough
        to be read every few seconds for many jobs. Unknown ids are left out."""
        columns = (jobs.c.state, jobs.c.updated_at, jobs.c.cancel_asked_at)
        root_id = func.coalesce(jobs.c.pipeline, jobs.c.id)
        root, other = jobs.alias(), jobs.alias()
        run = (
            select(other.c.updated_at)
            .where(other.c.pipeline == root_id)
            .order_by(other.c.created_at, other.c.id)
            .limit(limit)
            .correlate(jobs)
            .subquery()
        )
        own = select(
            jobs.c.id,
            *columns,
            *_PROGRESS,
            select(root.c.updated_at).where(root.c.id == root_id).scalar_subquery(),
            select(func.count()).select_from(run).scalar_subquery(),
            select(func.max(run.c.updated_at)).scalar_subquery(),
            select(dead_letters.c.updated_at)
            .where(dead_letters.c.id == jobs.c.id)
            .scalar_subquery(),
            select(func.count()).where(job_actions.c.job_id == jobs.c.id).scalar_subquery(),
        )
        found = own.select_from(_WITH_PROGRESS).where(among(connection, jobs.c.id, job_ids))
        return {row.id: tuple(row) for row in connection.execute(found)}

    @read
    def pipelines(
        self, connection: Connection, pipeline_ids: Collection[str], *, limit: int = 20_000
    ) -> dict[str, list[JobSummary]]:
        """Return the jobs of several pipelines, as `pipeline` does, in one query; pipelines without
        jobs are left out. At most `limit` jobs in all."""
        ids = set(pipeline_ids)
        query = (
            _summaries()
            .where(or_(jobs.c.id.in_(ids), jobs.c.pipeline.in_(ids)))
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(limit)
        )
        pipelines: dict[str, list[JobSummary]] = {}
        for row in connection.execute(query):
            job = _summary(row)
            if job.id in ids:
                pipelines.setdefault(job.id, []).insert(0, job)
            elif job.pipeline is not None:
                pipelines.setdefault(job.pipeline, []).append(job)
        return pipelines

    async def due_pending(
        self, older_than: float, limit: int, *, without: Collection[tuple[str, str]] = ()
    ) -> list[JobRecord]:
        """Return jobs to publish (again): those still `pending` and last touched before
        `older_than`. The most urgent lane comes first, then the oldest job; `without` as in
        `due_scheduled`."""
        query = (
            select(jobs)
            .where(jobs.c.state == State.PENDING, jobs.c.updated_at < older_than)
            .where(*_outside(without))
            .order_by(_URGENCY, jobs.c.created_at)
            .limit(limit)
        )
        return await self._records(query)

    async def late_pending(self, older_than: float) -> list[tuple[str, int, float]]:
        """Count jobs still `pending` and last touched before `older_than`, by routing key, with the
        time of the oldest; the largest number first."""
        query = (
            select(jobs.c.routing_key, func.count(), func.min(jobs.c.updated_at))
            .where(jobs.c.state == State.PENDING, jobs.c.updated_at < older_than)
            .group_by(jobs.c.routing_key)
            .order_by(func.count().desc(), jobs.c.routing_key)
        )
        return await self._database.read(
            lambda connection: [(key, number, at) for key, number, at in connection.execute(query)]
        )

    async def due_scheduled(
        self, now: float, limit: int, *, without: Collection[tuple[str, str]] = ()
    ) -> list[JobRecord]:
        """Return jobs whose `run_at` has come: the most urgent lane first, then the longest due.
        `without` are full queues, as lane and worker; their jobs are left out, and so do not hide
        the others.
        """
        query = (
            select(jobs)
            # Literal text: only with it does the database use the partial index.
            .where(text("state = 'scheduled'"), jobs.c.run_at <= now)
            .where(*_outside(without))
            .order_by(_URGENCY, jobs.c.run_at)
            .limit(limit)
        )
        return await self._records(query)

    @read
    def stale_running(
        self, connection: Connection, silent_for: float, limit: int
    ) -> list[JobRecord]:
        """Return running jobs whose worker has stopped, is unknown, or has sent no heartbeat for
        `silent_for` seconds by the database's clock."""
        query = (
            select(jobs)
            .outerjoin(workers, workers.c.worker_id == jobs.c.worker_id)
            .where(
                jobs.c.state == State.RUNNING,
                workers.c.worker_id.is_(None)
                | workers.c.stopped_at.is_not(None)
                | text(f"workers.beat_at < {clock(connection)} - :silent_for"),
            )
            .order_by(jobs.c.created_at)
            .limit(limit)
        )
        return [to_record(row) for row in connection.execute(query, {"silent_for": silent_for})]

    async def _records(self, query: Select[Any]) -> list[JobRecord]:
        return await self._database.read(
            lambda connection: [to_record(row) for row in connection.execute(query)]
        )


def _fetch_ids(connection: Connection, query: Select[Any]) -> list[str]:
    return list(connection.execute(query).scalars())


def _summaries() -> Select[Any]:
    return select(*_SUMMARY, *_PROGRESS).select_from(_WITH_PROGRESS)


def _outside(queues: Collection[tuple[str, str]]) -> list[ColumnElement[bool]]:
    """Return the conditions that leave out the jobs of these queues."""
    return [~((jobs.c.lane == lane) & (jobs.c.worker == worker)) for lane, worker in queues]


def _count_states(connection: Connection, states: Collection[State]) -> dict[str, dict[State, int]]:
    found: dict[str, dict[State, int]] = {}
    query = select(jobs.c.state, jobs.c.lane, func.count()).where(jobs.c.state.in_(states))
    for state, lane, number in connection.execute(query.group_by("state", "lane")):
        found.setdefault(lane, {})[State(state)] = number
    return found


def lanes_in(connection: Connection, state: State) -> list[str]:
    """Return the lanes that have jobs of this state, by a look into the index for each."""
    found: list[str] = []
    query = select(func.min(jobs.c.lane)).where(jobs.c.state == state)
    lane = connection.scalar(query)
    while lane is not None:
        found.append(lane)
        lane = connection.scalar(query.where(jobs.c.lane > lane))
    return found


def _find_bound(
    connection: Connection, job_filter: JobFilter, number: int, cursor: str | None
) -> float | None:
    """Return when the last of the next `number` jobs was made, newest first, whether or not they
    match; of the filter's state, and then its lane, if it has one. None where that is before the
    filter's own time, or there are fewer. Raises InvalidCursor."""
    at, key = jobs.c.created_at, jobs.c.id
    query = continued(select(at), at, key, cursor)
    if job_filter.until is not None:
        query = query.where(at < job_filter.until)
    if job_filter.state in (None, State.SUCCEEDED):  # nearly all jobs
        made = query.order_by(at.desc(), key.desc())
    else:
        wanted = JobFilter(state=job_filter.state, lane=job_filter.lane)
        parts = _lanes_in_states(connection, wanted) or [false()]
        newest = (query.where(part).order_by(at.desc()).limit(number) for part in parts)
        each = union_all(*(select(part.subquery()) for part in newest)).subquery()
        made = select(each.c.created_at).order_by(each.c.created_at.desc())
    made_at: float | None = connection.scalar(made.offset(number - 1).limit(1))
    if made_at is None or made_at <= (job_filter.since or 0.0):
        return None
    return made_at


def _lanes_in_states(
    connection: Connection, job_filter: JobFilter
) -> list[ColumnElement[bool]] | None:
    """Return a condition for each pair of state and lane that the jobs may have: for each, the
    index of states has the jobs in the order of age. None where neither is given, or where another
    index finds the jobs."""
    if job_filter.state is None and job_filter.lane is None:
        return None
    others = ("ids", "parent_id", "pipeline", "operation_id", "acted_by", "tags")
    if any(getattr(job_filter, name) for name in others):
        return None
    return [
        (jobs.c.state == state) & (jobs.c.lane == lane)
        for state in ([job_filter.state] if job_filter.state else State)
        for lane in ([job_filter.lane] if job_filter.lane else lanes_in(connection, state))
    ]


def _filter_jobs(
    query: Select[Any], job_filter: JobFilter, now: float, dialect: str
) -> Select[Any]:
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
            has_it = (other.c.job_id == jobs.c.id) & (other.c.name == name)
            query = query.where(exists().where(has_it, other.c.value == value))
    if job_filter.ids:
        query = query.where(among_of(dialect, jobs.c.id, job_filter.ids))
    if job_filter.acted_by is not None:
        condition = (job_actions.c.operation_id == job_filter.acted_by) & (
            job_actions.c.job_id == jobs.c.id
        )
        query = query.where(exists().where(condition))
    if job_filter.pipeline is not None:
        query = query.where(
            or_(jobs.c.id == job_filter.pipeline, jobs.c.pipeline == job_filter.pipeline)
        )
    for moment, since, until in (
        (jobs.c.created_at, job_filter.since, job_filter.until),
        (jobs.c.finished_at, job_filter.finished_since, job_filter.finished_until),
    ):
        if since is not None:
            query = query.where(moment >= since)
        if until is not None:
            query = query.where(moment < until)
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


def _sort_columns(job_filter: JobFilter) -> tuple[ColumnElement[float], ColumnElement[str]]:
    """Return when a job was made, and its id: the columns that order `_filter_jobs`."""
    if job_filter.tags:
        return job_tags.c.created_at, job_tags.c.job_id
    if job_filter.operation_id is not None or job_filter.acted_by is not None:
        # `+ 0.0` keeps PostgreSQL from walking the index of all jobs' ages: it expects these jobs
        # to be spread evenly in it, but they may be far back.
        return jobs.c.created_at + 0.0, jobs.c.id
    return jobs.c.created_at, jobs.c.id


def _with_tags(connection: Connection, summaries: Sequence[JobSummary]) -> tuple[JobSummary, ...]:
    tags: dict[str, dict[str, str]] = {}
    query = select(job_tags.c.job_id, job_tags.c.name, job_tags.c.value)
    query = query.where(among(connection, job_tags.c.job_id, [job.id for job in summaries]))
    for job_id, name, value in connection.execute(query.order_by(job_tags.c.name)):
        tags.setdefault(job_id, {})[name] = value
    return tuple(replace(job, tags=tags.get(job.id, {})) for job in summaries)


def _in_states(states: Collection[State]) -> ColumnElement[bool]:
    column: ColumnElement[Any] = jobs.c.state
    if State.SUCCEEDED in states:
        # Nearly all jobs: walk them by age, as `_filter_jobs` does.
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


def _summary_fields(row: RowMapping) -> dict[str, Any]:
    fields = {column.name: row[column.name] for column in _SUMMARY}
    fields["state"], fields["joins"] = State(fields["state"]), bool(fields["joins"])
    if row.get("reported_at") is not None:
        fields["progress"] = ProgressRecord(row["fraction"], row["note"], row["reported_at"])
    return fields


def _summary(row: Row[Any]) -> JobSummary:
    return JobSummary(**_summary_fields(row._mapping))


def to_record(row: Row[Any], timeline: tuple[AttemptRecord, ...] = ()) -> JobRecord:
    columns = row._mapping
    result = columns["result"]
    envelope = json.loads(columns["metadata"])
    return JobRecord(
        **_summary_fields(columns),
        payload=json.loads(columns["payload"]),
        envelope=envelope,
        tags=envelope.get("metadata", {}).get("tags", {}),
        result=None if result is None else json.loads(result),
        timeline=timeline,
        checkpoint_at=columns.get("kept_at"),
    )


def _attempt(row: Row[Any]) -> AttemptRecord:
    columns = row._mapping
    return AttemptRecord(
        redrive=columns["redrive"],
        attempt=columns["attempt"],
        worker_id=columns["worker_id"],
        started_at=columns["started_at"],
        finished_at=columns["finished_at"],
        outcome=columns["outcome"],
        error_type=columns["error_type"],
        error_message=columns["error_message"],
    )
