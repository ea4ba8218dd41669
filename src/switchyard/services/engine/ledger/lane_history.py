"""Record each lane's counts by minute, kept for some days.

Ended jobs are not counted one by one, which would cost every job an index. Their number is that of
the jobs that were open, plus the published ones, less those that are open now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from sqlalchemy import Column, Connection, delete, func, select, text

from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.tables import dead_letters, jobs, lane_minutes
from switchyard.services.engine.records.results import LaneMinute
from switchyard.services.engine.records.states import OPEN, State

MINUTE = 60.0
KEPT_FOR = 7 * 24 * 3600.0
"""Seconds for which the counts are kept."""
MAX_GAP = 180
"""Minutes without a scheduler that are filled in afterwards, at most."""
WAITS_SINCE = 600.0
"""Waits are measured for jobs that were published within this many seconds before now."""
MAX_WAITS = 20_000
_IS_FIRST_ATTEMPT = (jobs.c.attempts == 0) | (
    (jobs.c.attempts == 1) & jobs.c.state.not_in((State.RUNNING, State.SUCCEEDED))
)
"""Whether `started_at` is that of the first attempt (`JobSummary.begun_attempts`): a later one
follows a retry's delay, for which nobody has to find a free slot."""
_COLUMNS = tuple(column.name for column in lane_minutes.c)
_INSERT = text(
    f"INSERT INTO lane_minutes ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) ON CONFLICT DO NOTHING"
)


class LaneHistory(Repository):
    """Stores the minutes of each lane. All methods raise LedgerUnavailable when the database is
    away."""

    @read
    def minutes(self, connection: Connection, since: float) -> list[LaneMinute]:
        """Return the minutes since a time, in seconds since the epoch, the earliest first."""
        query = (
            select(lane_minutes)
            .where(lane_minutes.c.at >= since)
            .order_by(lane_minutes.c.at, lane_minutes.c.lane)
        )
        return [LaneMinute(**row) for row in connection.execute(query).mappings()]

    @write
    def add_minute(
        self,
        connection: Connection,
        lanes: Sequence[str],
        ready: Mapping[str, int],
        *,
        hot: str,
        now: float,
    ) -> None:
        """Add the counts since the last recorded minute, and remove those older than KEPT_FOR.
        `ready` is the number of messages in each lane's queues, where the broker reported it.
        Adding a minute twice changes nothing. Minutes that were missed are filled in: their
        published jobs are counted exactly, the ended ones spread evenly.
        """
        minute = now - now % MINUTE
        last = connection.scalar(select(func.max(lane_minutes.c.at)))
        rows = connection.execute(select(lane_minutes).where(lane_minutes.c.at == last)).mappings()
        before = {row["lane"]: LaneMinute(**row) for row in rows}
        if last is not None and last >= minute:
            return
        since = max((each.counted_at for each in before.values()), default=now - MINUTE)
        slices = _cut_slices(since, now, 1 if last is None else round((minute - last) / MINUTE))
        open_by_lane = _count_open(connection)
        waits = _fetch_waits(connection, hot, now - WAITS_SINCE, slices[-1])
        published = [
            _count_between(connection, jobs.c.lane, jobs.c.created_at, each) for each in slices
        ]
        died = [
            _count_between(connection, dead_letters.c.lane, dead_letters.c.dead_at, each)
            for each in slices
        ]
        minutes: list[LaneMinute] = []
        for lane in lanes:
            was_open = before[lane].open_jobs if lane in before else None
            total_published = sum(each[lane] for each in published)
            ended = (
                0 if was_open is None else max(0, was_open + total_published - open_by_lane[lane])
            )
            for index, (_, until) in enumerate(slices):
                is_last = index == len(slices) - 1
                minutes.append(
                    LaneMinute(
                        at=minute - MINUTE * (len(slices) - 1 - index),
                        lane=lane,
                        counted_at=until,
                        published=published[index][lane],
                        ended=_nth_share(ended, index, len(slices)),
                        dead=died[index][lane],
                        open_jobs=open_by_lane[lane],
                        ready=ready.get(lane) if is_last else None,
                        wait_p50=_quantile(waits, 0.5) if is_last and lane == hot else None,
                        wait_p99=_quantile(waits, 0.99) if is_last and lane == hot else None,
                    )
                )
        connection.execute(_INSERT, [asdict(each) for each in minutes])
        connection.execute(delete(lane_minutes).where(lane_minutes.c.at < now - KEPT_FOR))


Span = tuple[float, float]
"""Begin (included) and end (excluded) of a span, in seconds since the epoch."""


def _cut_slices(since: float, now: float, number: int) -> list[Span]:
    """Cut the time that was not counted yet into `number` equal parts, MAX_GAP at most."""
    number = max(1, min(number, MAX_GAP))
    bounds = [since + (now - since) * index / number for index in range(number + 1)]
    return list(pairwise(bounds))


def _nth_share(total: int, index: int, parts: int) -> int:
    """Return one of `parts` whole numbers, as equal as can be, that add up to the total."""
    return total * (index + 1) // parts - total * index // parts


def _count_between(
    connection: Connection, lane: Column[Any], at: Column[Any], span: Span
) -> Counter[str | None]:
    query = select(lane, func.count()).where(at >= span[0], at < span[1]).group_by(lane)
    return Counter({row[0]: int(row[1]) for row in connection.execute(query)})


def _count_open(connection: Connection) -> Counter[str]:
    query = select(jobs.c.lane, func.count()).where(jobs.c.state.in_(OPEN)).group_by(jobs.c.lane)
    return Counter({row[0]: int(row[1]) for row in connection.execute(query)})


def _fetch_waits(connection: Connection, lane: str, since: float, started: Span) -> list[float]:
    """Return how long the jobs of a lane that began their first attempt in `started` had waited,
    in seconds, the shortest first."""
    query = (
        select(jobs.c.queued_at, jobs.c.started_at)
        .where(
            jobs.c.created_at >= since,
            jobs.c.lane == lane,
            jobs.c.started_at >= started[0],
            jobs.c.started_at < started[1],
            jobs.c.queued_at.is_not(None),
            _IS_FIRST_ATTEMPT,
        )
        .limit(MAX_WAITS)
    )
    return sorted(max(0.0, began - queued) for queued, began in connection.execute(query))


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None
