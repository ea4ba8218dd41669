"""Run SQL queries over the archive, and optionally the ledger's jobs, by DuckDB.

A query is one SELECT over the tables `jobs` and `attempts`. It has no access to files, network or
settings; memory, time and the size of its result are bounded.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.services.common.errors import InvalidInput, PermanentFailure
from switchyard.services.common.files.storage import Storage, directory_of
from switchyard.services.engine.archive.archiver import ArchiveFileDamaged, copy_file
from switchyard.services.engine.archive.parquet import (
    ATTEMPT_LIST,
    NO_EXTENSIONS,
    JobTable,
    empty_source,
    load_duckdb,
    parquet_source,
    read_versions,
)
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.archive import ArchiveFile, microseconds

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

QUERY_MEMORY = "512MB"
QUERY_DISK = "8GB"
"""Size of temporary files, at most."""
MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Bytes of all values of a result together, as text."""
READ_BATCH_SIZE = 100
"""Jobs that are read from the ledger at once."""
_FETCH_BATCH_SIZE = 50
_DATABASE_OPTIONS = {
    "memory_limit": QUERY_MEMORY,
    "max_temp_directory_size": QUERY_DISK,
    "threads": "2",
    **NO_EXTENSIONS,
}


class InvalidQuery(InvalidInput):
    """A query is not a single SELECT, or DuckDB does not understand it; the text says what is
    wrong."""


class QueryTooCostly(PermanentFailure):
    """A query took too long, or needed too much memory or disk; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """The jobs that a query reads."""

    since: float = 0.0
    until: float = math.inf
    """Range of the jobs' creation times, in seconds since the epoch; both ends included."""
    with_ledger: bool = False
    """Whether jobs in the ledger are included."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query."""

    columns: tuple[str, ...]
    """Names of the columns; repeated ones have a number added."""
    rows: tuple[tuple[Any, ...], ...]
    """Values that JSON can express; times as ISO 8601 in UTC."""
    more: bool
    """Whether there are more rows, beyond the limit or MAX_RESULT_BYTES."""


async def run_query(
    sql: str,
    ledger: Ledger,
    storage: Storage,
    hide: Callable[[str, str], str],
    *,
    archive_range: ArchiveRange,
    limit: int,
    timeout: float,
) -> QueryResult:
    """Run one SELECT over `jobs` and `attempts`, for at most `timeout` seconds. `hide`: see
    `parquet.make_secrets_hider`. Raises InvalidQuery, QueryTooCostly, ArchiveFileDamaged,
    ExtraNotInstalled, LedgerError, StorageError."""
    await asyncio.to_thread(load_duckdb)
    check_is_select(sql)
    with tempfile.TemporaryDirectory(prefix="switchyard-archive-") as folder_name:
        folder = Path(folder_name)
        # Before the list of files is read: a job that is archived meanwhile is found in both
        # places, and counted once, instead of in none.
        current = (
            await _copy_ledger_jobs(ledger, folder, hide, archive_range)
            if archive_range.with_ledger
            else None
        )
        files = [
            file
            for file in await ledger.archive.list_files()
            if file.oldest_at <= archive_range.until and file.newest_at >= archive_range.since
        ]
        paths = [await _local_path(file, storage, folder) for file in files]
        hidden = [
            (str(path), job_id)
            for file, path in zip(files, paths, strict=True)
            for job_id in await _ids_in_ledger(file, path, ledger)
        ]
        with _open_database(folder, paths, current, hidden, archive_range) as connection:
            return await _fetch(connection, sql, limit, timeout)


def check_is_select(sql: str) -> None:
    """Raise InvalidQuery for anything but one SELECT."""
    import duckdb

    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidQuery(f"DuckDB can't read this query: {_first_lines(error)}") from error
    if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
        raise InvalidQuery("a query of the archive is one SELECT over `jobs` and `attempts`")


async def _copy_ledger_jobs(
    ledger: Ledger, folder: Path, hide: Callable[[str, str], str], archive_range: ArchiveRange
) -> Path:
    table = await asyncio.to_thread(JobTable, folder, hide)
    try:
        after: tuple[float, str] | None = None
        while True:
            page = await ledger.archive.list_ids_between(
                archive_range.since,
                min(archive_range.until, 1e15),
                after=after,
                limit=READ_BATCH_SIZE,
            )
            if page:
                batch = await ledger.archive.read_jobs([job_id for _, job_id in page])
                await asyncio.to_thread(table.add, batch)
            if len(page) < READ_BATCH_SIZE:
                return await asyncio.to_thread(table.write)
            after = page[-1]
    finally:
        await asyncio.to_thread(table.close)


async def _local_path(file: ArchiveFile, storage: Storage, folder: Path) -> Path:
    """Return the path of a file on this host; a file in an object store is copied first."""
    if (directory := directory_of(storage.url)) is None:
        path = folder / f"{file.number}.parquet"
        await copy_file(storage, file, path)
        return path
    stored = await storage.stat_async(file.key)
    if stored is None or stored.size != file.bytes:
        raise ArchiveFileDamaged(file, missing=stored is None)
    return directory / file.key


async def _ids_in_ledger(file: ArchiveFile, path: Path, ledger: Ledger) -> Iterable[str]:
    """Return the ids of a file's jobs that are still in the ledger, and count there."""
    if file.settled_at is not None:
        return file.kept
    versions = await asyncio.to_thread(read_versions, path)
    return await ledger.archive.find_remaining(versions)


def _open_database(
    folder: Path,
    paths: Sequence[Path],
    current: Path | None,
    hidden: Sequence[tuple[str, str]],
    archive_range: ArchiveRange,
) -> DuckDBPyConnection:
    """Open a database that has the tables `jobs` and `attempts`, and can read nothing else."""
    import duckdb

    connection = duckdb.connect(
        config={**_DATABASE_OPTIONS, "temp_directory": str(folder / "temporary")}
    )
    connection.execute("CREATE TABLE hidden (path VARCHAR, id VARCHAR)")
    if hidden:
        connection.execute(
            "INSERT INTO hidden SELECT unnest($1::VARCHAR[]), unnest($2::VARCHAR[])",
            [[path for path, _ in hidden], [job_id for _, job_id in hidden]],
        )
    parts = [f"SELECT *, true AS archived FROM {empty_source()}"]
    if paths:
        is_counted = (
            "NOT EXISTS (FROM hidden WHERE hidden.path = job.filename AND hidden.id = job.id)"
        )
        if current is not None:
            is_counted += (
                f" AND NOT EXISTS (FROM {parquet_source([current])} AS mine "
                "WHERE mine.id = job.id AND mine.created_at = job.created_at)"
            )
        parts.append(
            "SELECT * EXCLUDE (filename), true AS archived "
            f"FROM {parquet_source(paths, with_name=True)} AS job WHERE {is_counted}"
        )
    if current is not None:
        parts.append(f"SELECT *, false AS archived FROM {parquet_source([current])}")
    bounds = [f"created_at >= make_timestamp({microseconds(archive_range.since)}::BIGINT)"]
    if math.isfinite(archive_range.until):
        bounds.append(f"created_at <= make_timestamp({microseconds(archive_range.until)}::BIGINT)")
    everything = " UNION ALL BY NAME ".join(parts)
    connection.execute(
        f"CREATE VIEW everything AS SELECT * FROM ({everything}) WHERE {' AND '.join(bounds)}"
    )
    connection.execute(f"CREATE VIEW jobs AS SELECT * EXCLUDE ({ATTEMPT_LIST}) FROM everything")
    connection.execute(
        "CREATE VIEW attempts AS SELECT id AS job_id, job_type, lane, archived, "
        f"unnest({ATTEMPT_LIST}, recursive := true) FROM everything"
    )
    allowed = [str(path) for path in (*paths, *([current] if current else []))]
    connection.execute("SET allowed_paths = $1", [allowed])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


async def _fetch(
    connection: DuckDBPyConnection, sql: str, limit: int, timeout: float
) -> QueryResult:
    import duckdb

    task = asyncio.create_task(asyncio.to_thread(_fetch_rows, connection, sql, limit))
    try:
        finished, _ = await asyncio.wait((task,), timeout=timeout)
        if not finished:
            raise QueryTooCostly(
                f"the query took more than {timeout:g} s: ask for less time with --since and "
                "--until, or raise --timeout"
            )
        return task.result()
    except duckdb.OutOfMemoryException as error:
        raise QueryTooCostly(
            f"the query needs more than {QUERY_MEMORY} of memory, or {QUERY_DISK} of temporary "
            "files: ask for less time with --since and --until, or for fewer columns"
        ) from error
    except duckdb.Error as error:
        raise InvalidQuery(f"DuckDB can't run this query: {_first_lines(error)}") from error
    finally:
        while not task.done():
            connection.interrupt()
            await asyncio.wait((task,), timeout=0.1)


def _fetch_rows(connection: DuckDBPyConnection, sql: str, limit: int) -> QueryResult:
    cursor = connection.execute(sql)
    names: list[str] = []
    for name, *_ in cursor.description or ():
        number = 2
        unique = name
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    rows: list[tuple[Any, ...]] = []
    size = 0
    while len(rows) <= limit and size <= MAX_RESULT_BYTES:
        batch = cursor.fetchmany(min(_FETCH_BATCH_SIZE, limit + 1 - len(rows)))
        if not batch:
            return QueryResult(tuple(names), tuple(rows), more=False)
        rows += [tuple(map(_to_json_value, row)) for row in batch]
        size += sum(len(str(value)) for row in batch for value in row)
    return QueryResult(tuple(names), tuple(rows[:limit]), more=True)


def _to_json_value(value: Any) -> Any:
    """Return a value as one that JSON can express."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime():
            return value.isoformat(timespec="microseconds") + ("" if value.tzinfo else "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case dict():
            return {str(key): _to_json_value(each) for key, each in value.items()}
        case list() | tuple():
            return [_to_json_value(each) for each in value]
        case bytes():
            return value.hex()
        case _:
            return str(value)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
