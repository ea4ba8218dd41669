"""Read jobs: one, many, counts, a pipeline; and those that the scheduler has to publish."""

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
    CompoundSelect,
    Connection,
    Row,
    RowMapping,
    Select,
    bindparam,
    case,
    func,
    or_,
    select,
    text,
    tuple_,
    union_all,
)

from switchyard.broker.lanes import LANES
from switchyard.services.engine.ledger.sql.dialect import (
    among,
    keys_condition,
    keys_parameter,
    now_sql,
)
from switchyard.services.engine.ledger.sql.job_filters import (
    filter_jobs,
    find_examined_since,
    find_span_end,
    in_states,
    sort_columns,
    state_lane_conditions,
)
from switchyard.services.engine.ledger.sql.paging import cursor_before, fetch_page
from switchyard.services.engine.ledger.sql.repository import LedgerCore, Repository, read
from switchyard.services.engine.ledger.sql.tables import (
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
from switchyard.services.engine.records.requests import JobFilter
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
# Built once: to build them would take time in each request.
_JOB_QUERY = (
    select(jobs, *_PROGRESS, _CHECKPOINT_AT)
    .select_from(_WITH_PROGRESS)
    .where(jobs.c.id == bindparam("job"))
)
_ATTEMPTS_QUERY = (
    select(attempts).where(attempts.c.job_id == bindparam("job")).order_by(attempts.c.id)
)

COUNT_SECONDS = 0.1
"""Seconds that a count of ended jobs may take; the result of a slower one is reused."""
COUNT_REUSE_RATIO = 20.0
"""A slow count of ended jobs is reused for this many times its duration: counting takes at most
about a twentieth of the time."""
MANY_ENDED = 100_000
"""Fewer ended jobs are counted each time: if that is slow, the machine is busy with other work."""
EXAMINED_JOBS = 20_000
"""Jobs that are examined for one page if no index finds those that match. It takes some hundredths
of a second; to examine millions would take many seconds."""
FIRST_EXAMINED_PAGES = 10
"""The first try examines this many times as many jobs as a page has."""
MAX_RUN_JOBS = 1_000
"""Jobs of one run of a pipeline that are read, beside its first."""
_IDS_PAGE = 10_000
"""Ids that are read in one transaction."""


class JobReads(Repository):
    """Reads jobs, without waiting for a writer. All methods raise LedgerUnavailable when the
    database is away."""

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
        return to_record(row, tuple(_to_attempt(each) for each in ended))

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

    @read
    def list_jobs(
        self,
        connection: Connection,
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
        at, key = sort_columns(job_filter)
        now, dialect = self.clock.time(), self._database.dialect

        def read_page(connection: Connection, number: int | None) -> JobListing:
            bound = None
            bounded_filter = job_filter
            if number is not None:
                bound = find_examined_since(connection, job_filter, number, cursor)
            if bound is not None:
                bounded_filter = replace(job_filter, since=bound)
            parts = state_lane_conditions(connection, bounded_filter)
            rest = bounded_filter
            if parts is not None:  # each of them names a state and a lane
                rest = replace(bounded_filter, state=None, lane=None)
            query = filter_jobs(_summaries(), rest, now, dialect)
            page = fetch_page(connection, query, at, key, _to_summary, limit, cursor, parts=parts)
            next_cursor = page.next_cursor
            if next_cursor is None and bound is not None:
                next_cursor = cursor_before(bound)
            return JobListing(_with_tags(connection, page.items), next_cursor, bound)

        if examined is None or not job_filter.is_scan:
            return read_page(connection, None)
        # Usually, a page is filled from the newest jobs. To find these is quicker than even to
        # count 20,000 jobs.
        first = min(FIRST_EXAMINED_PAGES * limit, examined)
        page = read_page(connection, first)
        if page.examined_since is None or len(page.items) == limit or first == examined:
            return page
        return read_page(connection, examined)

    @read
    def find_examined_since(
        self, connection: Connection, job_filter: JobFilter, number: int
    ) -> float | None:
        """Return the time of the oldest job that `list_jobs` examines for its first page, if it
        examines `number` jobs; None if it examines all of them."""
        return find_examined_since(connection, job_filter, number, None)

    async def matching_jobs(
        self,
        job_filter: JobFilter,
        states: Collection[State],
        *,
        after: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> list[JobSummary]:
        """Return jobs that match the filter and are in one of the states, the oldest first. `after`
        is the position of the last job of the page before: when it was made, and its id."""
        matching: list[JobSummary] = []
        async for span in self._spans(job_filter, states, 0.0 if after is None else after[0]):
            query = self._matching(_summaries(), span, states)
            at, key = sort_columns(span)
            if after is not None:
                query = query.where(at >= after[0], tuple_(at, key) > tuple_(*after))
            query = query.order_by(at, key).limit(limit - len(matching))
            matching += await self._database.read(partial(_fetch_summaries, query=query))
            if len(matching) == limit:
                break
        return matching

    async def count_matching(
        self, job_filter: JobFilter, states: Collection[State], *, at_most: int
    ) -> int:
        """Count the jobs that match the filter and are in one of the states, up to `at_most`."""
        number = 0
        async for span in self._spans(job_filter, states, 0.0):
            query = self._matching(select(jobs.c.id), span, states).limit(at_most - number)
            counted = select(func.count()).select_from(query.subquery())
            number += await self._database.read(partial(_fetch_number, query=counted))
            if number == at_most:
                break
        return number

    async def count_matching_by_state(
        self, job_filter: JobFilter, *, at_most: int
    ) -> Counter[State]:
        """Count the jobs that match the filter by their states: up to `at_most` that have not
        ended, and up to `at_most` that have, so that many of the one do not hide the other."""
        counts: Counter[State] = Counter()
        groups = [frozenset(OPEN), FINISHED]
        if job_filter.state is not None:
            groups = [frozenset({job_filter.state})]
        counted_until = 0.0
        while groups:
            async for span in self._spans(job_filter, frozenset().union(*groups), counted_until):
                queries = [
                    _group_by_state(
                        self._matching(select(jobs.c.state), span, states),
                        at_most - _total(counts, states),
                    )
                    for states in groups
                ]
                counts.update(
                    await self._database.read(
                        partial(_fetch_state_counts, query=union_all(*queries))
                    )
                )
                if any(_total(counts, states) >= at_most for states in groups):
                    break
            if span.until == job_filter.until:  # that was the last one
                break
            counted_until = span.until or 0.0
            groups = [states for states in groups if _total(counts, states) < at_most]
        return counts

    async def _spans(
        self, job_filter: JobFilter, states: Collection[State], since: float
    ) -> AsyncIterator[JobFilter]:
        """Cut the filter into spans of time with about EXAMINED_JOBS jobs each, and yield these,
        the oldest first: to look through millions at once takes longer than a statement may.
        Yield the filter itself if an index finds its jobs."""
        if job_filter.is_indexed:
            yield job_filter
            return
        if job_filter.state is not None:
            states = [job_filter.state]
        begin = max(since, job_filter.since or 0.0)
        while True:
            end = await self._database.read(
                partial(
                    find_span_end,
                    states=states,
                    after=begin,
                    until=job_filter.until,
                    number=EXAMINED_JOBS,
                )
            )
            if end is None:
                yield replace(job_filter, since=begin)
                return
            yield replace(job_filter, since=begin, until=end)
            begin = end

    def _matching(
        self, query: Select[Any], job_filter: JobFilter, states: Collection[State]
    ) -> Select[Any]:
        query = filter_jobs(query, job_filter, self.clock.time(), self._database.dialect)
        return query.where(in_states(states))

    @read
    def count_newest_by_state(
        self, connection: Connection, job_filter: JobFilter, *, newest: int
    ) -> dict[State, int]:
        """Count the newest jobs that match the filter, `newest` at most, by state; the filter's own
        state is ignored."""
        query = filter_jobs(
            select(jobs.c.state),
            replace(job_filter, state=None),
            self.clock.time(),
            self._database.dialect,
        )
        at, key = sort_columns(job_filter)
        sample = query.order_by(at.desc(), key.desc()).limit(newest).subquery()
        counted = select(sample.c.state, func.count()).group_by(sample.c.state)
        return {State(state): number for state, number in connection.execute(counted)}

    @read
    def count_open_by_state(self, connection: Connection, lane: str | None) -> dict[State, int]:
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
        them takes more than COUNT_SECONDS, the result is reused for COUNT_REUSE_RATIO times as
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
                self._count_again_at = ended_at + took * COUNT_REUSE_RATIO
        for lane, numbers in self._ended.items():
            counts.setdefault(lane, {}).update(numbers)
        return counts

    @read
    def running_by_worker(self, connection: Connection) -> dict[str | None, int]:
        """Count the jobs that run now, by the worker's id."""
        query = (
            select(jobs.c.worker_id, func.count())
            .where(jobs.c.state == State.RUNNING)
            .group_by(jobs.c.worker_id)
        )
        return {row[0]: row[1] for row in connection.execute(query)}

    @read
    def timed_out(self, connection: Connection, since: float) -> dict[str, int]:
        """Count, by type, the jobs that exceeded their time limit after `since`, and that wait for
        another attempt or are dead; the largest number first."""
        # By itself, SQLite takes the index of states, and looks at every dead job that there is.
        hint = "INDEXED BY ix_jobs_dead" if self._database.dialect == "sqlite" else ""
        number_by_type: Counter[str] = Counter()
        for source in ("jobs WHERE state = 'retrying'", f"jobs {hint} WHERE state = 'dead'"):
            query = text(
                f"SELECT job_type, count(*) FROM {source} "
                "AND error_type = :error AND updated_at >= :since GROUP BY job_type"
            )
            values = {"error": TIMED_OUT, "since": since}
            for job_type, number in connection.execute(query, values):
                number_by_type[job_type] += number
        return dict(number_by_type.most_common())

    @read
    def ignored_cancels(
        self, connection: Connection, before: float, limit: int
    ) -> list[JobSummary]:
        """Return jobs that still run although their cancellation was requested before that time;
        the oldest request first."""
        query = (
            _summaries()
            .where(jobs.c.state == State.RUNNING, jobs.c.cancel_asked_at < before)
            .order_by(jobs.c.cancel_asked_at, jobs.c.id)
            .limit(limit)
        )
        return [_to_summary(row) for row in connection.execute(query)]

    @read
    def pipeline(self, connection: Connection, pipeline_id: str) -> list[JobSummary]:
        """Return the jobs of one run of a pipeline, oldest first: its first job, and of the others
        the first MAX_RUN_JOBS."""
        root = _summaries().where(jobs.c.id == pipeline_id)
        others = (
            _summaries()
            .where(jobs.c.pipeline == pipeline_id, jobs.c.id != pipeline_id)
            .order_by(jobs.c.created_at, jobs.c.id)
            .limit(MAX_RUN_JOBS)
        )
        rows = [*connection.execute(root), *connection.execute(others)]
        return [_to_summary(row) for row in rows]

    @read
    def run_versions(self, connection: Connection, job_ids: Collection[str]) -> dict[str, Hashable]:
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
            .limit(MAX_RUN_JOBS)
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
        query = own.select_from(_WITH_PROGRESS).where(among(connection, jobs.c.id, job_ids))
        return {row.id: tuple(row) for row in connection.execute(query)}

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
            job = _to_summary(row)
            if job.id in ids:
                pipelines.setdefault(job.id, []).insert(0, job)
            elif job.pipeline is not None:
                pipelines.setdefault(job.pipeline, []).append(job)
        return pipelines

    async def due_pending(
        self, older_than: float, limit: int, *, full_queues: Collection[tuple[str, str]] = ()
    ) -> list[JobRecord]:
        """Return jobs to publish (again): those still `pending` and last touched before
        `older_than`. The most urgent lane comes first, then the oldest job. The jobs of
        `full_queues`, pairs of lane and kind of worker, are left out, and so hide no others.
        """
        query = (
            select(jobs)
            .where(jobs.c.state == State.PENDING, jobs.c.updated_at < older_than)
            .where(*_not_in_queues(full_queues))
            .order_by(_URGENCY, jobs.c.created_at)
            .limit(limit)
        )
        return await self._records(query)

    @read
    def late_pending(
        self, connection: Connection, older_than: float
    ) -> list[tuple[str, int, float]]:
        """Count jobs still `pending` and last touched before `older_than`, by routing key, with the
        time of the oldest; the largest number first."""
        query = (
            select(jobs.c.routing_key, func.count(), func.min(jobs.c.updated_at))
            .where(jobs.c.state == State.PENDING, jobs.c.updated_at < older_than)
            .group_by(jobs.c.routing_key)
            .order_by(func.count().desc(), jobs.c.routing_key)
        )
        return [(key, number, at) for key, number, at in connection.execute(query)]

    async def due_scheduled(
        self, now: float, limit: int, *, full_queues: Collection[tuple[str, str]] = ()
    ) -> list[JobRecord]:
        """Return jobs whose `run_at` has come: the most urgent lane first, then the longest due.
        The jobs of `full_queues` are left out, as in `due_pending`.
        """
        query = (
            select(jobs)
            # Literal text: only with it does the database use the partial index.
            .where(text("state = 'scheduled'"), jobs.c.run_at <= now)
            .where(*_not_in_queues(full_queues))
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
                | text(f"workers.beat_at < {now_sql(connection)} - :silent_for"),
            )
            .order_by(jobs.c.created_at)
            .limit(limit)
        )
        return [to_record(row) for row in connection.execute(query, {"silent_for": silent_for})]

    @read
    def _records(self, connection: Connection, query: Select[Any]) -> list[JobRecord]:
        return [to_record(row) for row in connection.execute(query)]


def _fetch_ids(connection: Connection, query: Select[Any]) -> list[str]:
    return list(connection.execute(query).scalars())


def _fetch_summaries(connection: Connection, query: Select[Any]) -> list[JobSummary]:
    return [_to_summary(row) for row in connection.execute(query)]


def _fetch_number(connection: Connection, query: Select[Any]) -> int:
    return connection.scalar(query) or 0


def _group_by_state(matching: Select[Any], at_most: int) -> Select[Any]:
    sample = matching.limit(at_most).subquery()
    return select(sample.c.state, func.count()).group_by(sample.c.state)


def _fetch_state_counts(connection: Connection, query: CompoundSelect[Any]) -> dict[State, int]:
    return {State(state): number for state, number in connection.execute(query)}


def _total(counts: Counter[State], states: Collection[State]) -> int:
    return sum(counts[state] for state in states)


def _summaries() -> Select[Any]:
    return select(*_SUMMARY, *_PROGRESS).select_from(_WITH_PROGRESS)


def _not_in_queues(queues: Collection[tuple[str, str]]) -> list[ColumnElement[bool]]:
    """Return the conditions that leave out the jobs of these queues, pairs of lane and kind of
    worker."""
    return [~((jobs.c.lane == lane) & (jobs.c.worker == kind)) for lane, kind in queues]


def _count_states(connection: Connection, states: Collection[State]) -> dict[str, dict[State, int]]:
    counts: dict[str, dict[State, int]] = {}
    query = select(jobs.c.state, jobs.c.lane, func.count()).where(jobs.c.state.in_(states))
    for state, lane, number in connection.execute(query.group_by("state", "lane")):
        counts.setdefault(lane, {})[State(state)] = number
    return counts


def _with_tags(connection: Connection, summaries: Sequence[JobSummary]) -> tuple[JobSummary, ...]:
    tags: dict[str, dict[str, str]] = {}
    query = select(job_tags.c.job_id, job_tags.c.name, job_tags.c.value)
    query = query.where(among(connection, job_tags.c.job_id, [job.id for job in summaries]))
    for job_id, name, value in connection.execute(query.order_by(job_tags.c.name)):
        tags.setdefault(job_id, {})[name] = value
    return tuple(replace(job, tags=tags.get(job.id, {})) for job in summaries)


def _summary_fields(row: RowMapping) -> dict[str, Any]:
    fields = {column.name: row[column.name] for column in _SUMMARY}
    fields["state"], fields["joins"] = State(fields["state"]), bool(fields["joins"])
    if row.get("reported_at") is not None:
        fields["progress"] = ProgressRecord(row["fraction"], row["note"], row["reported_at"])
    return fields


def _to_summary(row: Row[Any]) -> JobSummary:
    return JobSummary(**_summary_fields(row._mapping))


def to_record(row: Row[Any], timeline: tuple[AttemptRecord, ...] = ()) -> JobRecord:
    columns = row._mapping
    result = columns["result"]
    # The column has the whole envelope, of which `metadata` is a part.
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


def _to_attempt(row: Row[Any]) -> AttemptRecord:
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
