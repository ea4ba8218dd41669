"""Register files of the archive, and read the jobs for them.

A file is registered before the first of its jobs is removed, so every job stands in the ledger or
in a registered file. A file is unsettled while its jobs are being removed. Only one file at a time
may be unsettled, and its number follows the last one's: of two processes that archive at the same
time, one registers its file and the other throws its own away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, exists, func, literal, select, tuple_, update

from switchyard.services.engine.ledger.sql.codec import to_json
from switchyard.services.engine.ledger.sql.dialect import among, insert_into
from switchyard.services.engine.ledger.sql.repository import Repository, read, write
from switchyard.services.engine.ledger.sql.stopwatch import Stopwatch
from switchyard.services.engine.ledger.sql.tables import archive_files, attempts, job_tags, jobs
from switchyard.services.engine.records.archive import (
    ArchiveFile,
    JobsToArchive,
    JobVersion,
    microseconds,
)


class ArchiveRepository(Repository):
    """Registers archive files, and reads the jobs for them. All methods raise LedgerUnavailable
    when the database is away."""

    @read
    def read_jobs(self, connection: Connection, job_ids: Sequence[str]) -> JobsToArchive:
        """Return those of these jobs that exist, with attempts and tags."""
        watch = Stopwatch(connection)
        found = connection.execute(select(jobs).where(among(connection, jobs.c.id, job_ids)))
        rows = [dict(row._mapping) for row in found]
        query = select(attempts).where(among(connection, attempts.c.job_id, job_ids))
        attempt_rows = connection.execute(query.order_by(attempts.c.id))
        tags: dict[str, dict[str, str]] = {}
        for tag in connection.execute(
            select(job_tags).where(among(connection, job_tags.c.job_id, job_ids))
        ):
            tags.setdefault(tag.job_id, {})[tag.name] = tag.value
        return JobsToArchive(
            rows, [dict(row._mapping) for row in attempt_rows], tags, watch.seconds()
        )

    @read
    def list_ids_between(
        self,
        connection: Connection,
        since: float,
        until: float,
        *,
        after: tuple[float, str] | None,
        limit: int,
    ) -> list[tuple[float, str]]:
        """Return creation time and id of the next jobs in a period, oldest first."""
        query = select(jobs.c.created_at, jobs.c.id).where(
            jobs.c.created_at >= since, jobs.c.created_at <= until
        )
        if after is not None:
            key = tuple_(jobs.c.created_at, jobs.c.id)
            query = query.where(jobs.c.created_at >= after[0], key > tuple_(*after))
        rows = connection.execute(query.order_by(jobs.c.created_at, jobs.c.id).limit(limit))
        return [(row.created_at, row.id) for row in rows]

    @read
    def get_last_number(self, connection: Connection) -> int:
        """Return the number of the newest file; 0 where there is none."""
        return connection.scalar(select(func.max(archive_files.c.number))) or 0

    @write
    def register(self, connection: Connection, file: ArchiveFile) -> bool:
        """Record a complete file, whose jobs may be removed from now on. False, and nothing is
        recorded, where another process has registered a file meanwhile or has an unsettled one."""
        blocking = select(literal(1)).where(
            exists().where(
                (archive_files.c.number >= file.number) | archive_files.c.settled_at.is_(None)
            )
        )
        if connection.scalar(blocking) is not None:
            return False
        values = {
            "number": file.number,
            "key": file.key,
            "jobs": file.jobs,
            "attempts": file.attempts,
            "bytes": file.bytes,
            "sha256": file.sha256,
            "oldest_at": file.oldest_at,
            "newest_at": file.newest_at,
            "created_at": file.created_at,
        }
        insertion = insert_into(connection, archive_files).values(values).on_conflict_do_nothing()
        return connection.execute(insertion).rowcount == 1

    @read
    def find_unsettled(self, connection: Connection) -> ArchiveFile | None:
        """Return the unsettled file: its jobs are being removed, or were when a process died."""
        query = select(archive_files).where(archive_files.c.settled_at.is_(None))
        row = connection.execute(query).first()
        return None if row is None else _to_file(row)

    @read
    def find_remaining(
        self, connection: Connection, versions: Mapping[str, JobVersion]
    ) -> set[str]:
        """Return the ids of those of these jobs that the ledger still has. A newer job with the
        same id does not count."""
        return _find_remaining(connection, versions)

    @write
    def settle(
        self, connection: Connection, number: int, remaining: Mapping[str, JobVersion]
    ) -> None:
        """Record that the jobs of a file were removed from the ledger, except those of
        `remaining` that still exist. From now on, no process removes jobs for this file."""
        condition = (archive_files.c.number == number) & archive_files.c.settled_at.is_(None)
        # Waits for transactions that still remove jobs for this file.
        locked = select(archive_files.c.number).where(condition).with_for_update()
        if connection.scalar(locked) is None:
            return
        kept = sorted(_find_remaining(connection, remaining))
        connection.execute(
            update(archive_files)
            .where(condition)
            .values(settled_at=self.clock.time(), kept_ids=to_json(kept) if kept else None)
        )

    @write
    def forget(self, connection: Connection, numbers: Sequence[int]) -> int:
        """Delete the records of these files, and return their number."""
        statement = delete(archive_files).where(archive_files.c.number.in_(numbers))
        return connection.execute(statement).rowcount

    @read
    def list_files(self, connection: Connection) -> list[ArchiveFile]:
        """Return all files, oldest first."""
        query = select(archive_files).order_by(archive_files.c.number)
        return [_to_file(row) for row in connection.execute(query)]


def lock_unsettled(connection: Connection, number: int) -> bool:
    """Lock the row of an unsettled file until the transaction ends: its jobs may be removed, and
    nobody settles it meanwhile. False where it is settled."""
    query = select(archive_files.c.number).where(
        archive_files.c.number == number, archive_files.c.settled_at.is_(None)
    )
    return connection.scalar(query.with_for_update(read=True)) is not None


def _find_remaining(connection: Connection, versions: Mapping[str, JobVersion]) -> set[str]:
    query = select(jobs.c.id, jobs.c.created_at).where(
        among(connection, jobs.c.id, sorted(versions))
    )
    return {
        row.id
        for row in connection.execute(query)
        if microseconds(row.created_at) == versions[row.id].created_us
    }


def _to_file(row: Any) -> ArchiveFile:
    return ArchiveFile(
        number=row.number,
        key=row.key,
        jobs=row.jobs,
        attempts=row.attempts,
        bytes=row.bytes,
        sha256=row.sha256,
        oldest_at=row.oldest_at,
        newest_at=row.newest_at,
        created_at=row.created_at,
        settled_at=row.settled_at,
        kept=frozenset(json.loads(row.kept_ids)) if row.kept_ids else frozenset(),
    )
