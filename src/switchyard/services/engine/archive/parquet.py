"""Parquet files of jobs, by DuckDB: written from rows of the ledger, and read again.

One file has jobs, each with its attempts in a list, so that a job and its attempts are complete
together. Payloads, results and metadata are text, as in the ledger; moments are UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from switchyard.services.common.extras import naming_extra
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.records.archive import JobsToArchive, JobVersion, microseconds

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WRITER_MEMORY = "128MB"
"""Memory that DuckDB may use while it writes a file; beyond it, data goes to the disk."""

_MOMENTS = (
    *("created_at", "queued_at", "started_at", "finished_at", "updated_at"),
    *("run_at", "expires_at"),
)
_JOB_COLUMNS: Mapping[str, str] = {
    "id": "VARCHAR",
    "job_type": "VARCHAR",
    "lane": "VARCHAR",
    "routing_key": "VARCHAR",
    "worker": "VARCHAR",
    "priority": "INTEGER",
    "state": "VARCHAR",
    "source": "VARCHAR",
    "parent_id": "VARCHAR",
    "pipeline": "VARCHAR",
    "operation_id": "VARCHAR",
    "join_id": "VARCHAR",
    "idempotency_key": "VARCHAR",
    "attempts": "INTEGER",
    "max_attempts": "INTEGER",
    "redrives": "INTEGER",
    "crashes": "INTEGER",
    "worker_id": "VARCHAR",
    **dict.fromkeys(_MOMENTS, "TIMESTAMP"),
    "reason": "VARCHAR",
    "error_type": "VARCHAR",
    "error_message": "VARCHAR",
    "metadata": "VARCHAR",
    "payload": "VARCHAR",
    "result": "VARCHAR",
}
"""Columns of `jobs` in the ledger and in a file."""
_TAGS = {"tags": "MAP(VARCHAR, VARCHAR)"}
_ATTEMPT_COLUMNS: Mapping[str, str] = {
    "redrive": "INTEGER",
    "attempt": "INTEGER",
    "worker_id": "VARCHAR",
    "started_at": "TIMESTAMP",
    "finished_at": "TIMESTAMP",
    "outcome": "VARCHAR",
    "error_type": "VARCHAR",
    "error_message": "VARCHAR",
}
_TRIED_COLUMNS = {"place": "BIGINT", "job_id": "VARCHAR", **_ATTEMPT_COLUMNS}
"""Columns of the table in which attempts are collected for a file."""
ATTEMPT_LIST = "attempt_list"
"""The column of a file that has the attempts of a job."""
NO_EXTENSIONS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""DuckDB would fetch what it lacks from the network."""


def load_duckdb() -> None:
    """Import DuckDB. Raises ExtraNotInstalled."""
    with naming_extra():
        import duckdb  # noqa: F401


class JobTable:
    """Collects the jobs for one file, in a database of their own on the disk. Threads wait for each
    other: one whose caller was cancelled may still be at work."""

    def __init__(self, folder: Path, hide: Callable[[str, str], str]) -> None:
        """`hide` gives the payload of a job type, as JSON, as people may see it."""
        with naming_extra():
            import duckdb

        self._lock = Lock()
        self._hide = hide
        self._folder = folder
        self._connection: DuckDBPyConnection = duckdb.connect(
            str(folder / "jobs.duckdb"),
            config={
                "memory_limit": WRITER_MEMORY,
                "threads": "1",
                "temp_directory": str(folder),
                **NO_EXTENSIONS,
            },
        )
        self._create("job", {**_JOB_COLUMNS, **_TAGS})
        self._create("attempt", _TRIED_COLUMNS)
        self.versions: dict[str, JobVersion] = {}
        self.attempts = 0
        self.content_bytes = 0
        """Bytes of payloads, results, metadata and errors, before compression."""

    def add(self, found: JobsToArchive) -> None:
        """Add jobs, with their attempts."""
        with self._lock:
            self._add(found)

    def _add(self, found: JobsToArchive) -> None:
        jobs = [
            {**row, "payload": self._hide(row["job_type"], row["payload"])} for row in found.jobs
        ]
        columns = {name: [row[name] for row in jobs] for name in _JOB_COLUMNS}
        names = [list(found.tags.get(row["id"], {})) for row in jobs]
        values = [list(found.tags.get(row["id"], {}).values()) for row in jobs]
        self._insert("job", _JOB_COLUMNS, columns, tags=(names, values))
        tried: dict[str, list[Any]] = {
            "place": [row["id"] for row in found.attempts],
            "job_id": [row["job_id"] for row in found.attempts],
            **{name: [row[name] for row in found.attempts] for name in _ATTEMPT_COLUMNS},
        }
        self._insert("attempt", _TRIED_COLUMNS, tried)
        for row in jobs:
            self.versions[row["id"]] = JobVersion(
                microseconds(row["created_at"]), microseconds(row["updated_at"])
            )
            self.content_bytes += sum(
                len(row[name] or "") for name in ("payload", "result", "metadata", "error_message")
            )
        self.attempts += len(found.attempts)

    def write(self) -> Path:
        """Write the file, oldest job first, and return its path."""
        path = self._folder / "jobs.parquet"
        with self._lock:
            self._copy_to(path)
        return path

    def _copy_to(self, path: Path) -> None:
        fields = ", ".join(f"{name} := {name}" for name in _ATTEMPT_COLUMNS)
        self._connection.execute(
            f"COPY (SELECT job.*, coalesce(tried.list, []) AS {ATTEMPT_LIST} FROM job "
            f"LEFT JOIN (SELECT job_id, list(struct_pack({fields}) ORDER BY place) AS list "
            "FROM attempt GROUP BY job_id) AS tried ON tried.job_id = job.id "
            f"ORDER BY job.created_at, job.id) TO '{_quote(path)}' "
            "(FORMAT parquet, COMPRESSION zstd)"
        )

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            self._connection.close()

    def _create(self, name: str, columns: Mapping[str, str]) -> None:
        column_list = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        self._connection.execute(f"CREATE TABLE {name} ({column_list})")

    def _insert(
        self,
        table: str,
        kinds: Mapping[str, str],
        columns: Mapping[str, list[Any]],
        *,
        tags: tuple[list[list[str]], list[list[str]]] | None = None,
    ) -> None:
        if not next(iter(columns.values())):
            return
        parameters: list[list[Any]] = []
        fields = []
        for name, kind in kinds.items():
            values = columns[name]
            if kind == "TIMESTAMP":
                values = [None if value is None else microseconds(value) for value in values]
                fields.append(f"make_timestamp(unnest(${len(parameters) + 1}::BIGINT[]))")
            else:
                fields.append(f"unnest(${len(parameters) + 1}::{kind}[])")
            parameters.append(values)
        if tags is not None:
            first = len(parameters) + 1
            fields.append(f"map(unnest(${first}::VARCHAR[][]), unnest(${first + 1}::VARCHAR[][]))")
            parameters += tags
        self._connection.execute(f"INSERT INTO {table} SELECT {', '.join(fields)}", parameters)


def read_versions(path: Path) -> dict[str, JobVersion]:
    """Return which jobs are in a file, by id. Raises ExtraNotInstalled."""
    with naming_extra():
        import duckdb

    with duckdb.connect(config={"threads": "1", **NO_EXTENSIONS}) as connection:
        rows = connection.execute(
            "SELECT id, epoch_us(created_at), epoch_us(updated_at) "
            f"FROM read_parquet('{_quote(path)}')"
        ).fetchall()
    return {job_id: JobVersion(created, updated) for job_id, created, updated in rows}


def parquet_source(paths: Iterable[Path], *, with_name: bool = False) -> str:
    """Return a FROM item of these files; with the column `filename`, if that is wanted. An older
    file may lack columns that newer ones have."""
    path_list = ", ".join(f"'{_quote(path)}'" for path in paths)
    name = ", filename = true" if with_name else ""
    return f"read_parquet([{path_list}], union_by_name = true{name})"


def empty_source() -> str:
    """Return a FROM item without rows that has all columns of a file."""
    attempt = ", ".join(f"{name} {kind}" for name, kind in _ATTEMPT_COLUMNS.items())
    kinds = {**_JOB_COLUMNS, **_TAGS, ATTEMPT_LIST: f"STRUCT({attempt})[]"}
    column_list = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in kinds.items())
    return f"(SELECT {column_list} WHERE false)"


def hiding_secrets(registry: Registry) -> Callable[[str, str], str]:
    """Return a function that gives the payload of a job type, as JSON, as people may see it."""

    def hide(job_type: str, payload: str) -> str:
        if registry.secrets_of(job_type) is None:
            return payload
        shown = registry.shown_payload(job_type, json.loads(payload))
        return json.dumps(shown, ensure_ascii=True, separators=(",", ":"))

    return hide


def _quote(path: Path) -> str:
    return str(path).replace("'", "''")
