"""Write jobs of the ledger to Parquet files by DuckDB, and read them.

Each job has its attempts in a list, so that a file is never without the attempts of a job.
Payloads, results and metadata are text, as in the ledger; times are in UTC.
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

_TIME_COLUMNS = (
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
    **dict.fromkeys(_TIME_COLUMNS, "TIMESTAMP"),
    "reason": "VARCHAR",
    "error_type": "VARCHAR",
    "error_message": "VARCHAR",
    "metadata": "VARCHAR",
    "payload": "VARCHAR",
    "result": "VARCHAR",
}
"""Columns of `jobs` in the ledger and in a file."""
_TAG_COLUMN = {"tags": "MAP(VARCHAR, VARCHAR)"}
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
_ATTEMPT_TABLE_COLUMNS = {"place": "BIGINT", "job_id": "VARCHAR", **_ATTEMPT_COLUMNS}
"""Columns of the table in which attempts are collected for a file."""
ATTEMPT_LIST = "attempt_list"
"""The column of a file that has the attempts of a job."""
NO_EXTENSIONS = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Options that keep DuckDB from downloading extensions."""


def load_duckdb() -> None:
    """Import DuckDB. Raises ExtraNotInstalled."""
    with naming_extra():
        import duckdb  # noqa: F401


class JobTable:
    """Collects the jobs for one file in a temporary database on the disk. Safe in several threads:
    the thread of a cancelled caller may still run."""

    def __init__(self, folder: Path, hide: Callable[[str, str], str]) -> None:
        """`hide` takes a job type and a payload, and returns the payload without its secrets; both
        JSON."""
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
        self._create("job", {**_JOB_COLUMNS, **_TAG_COLUMN})
        self._create("attempt", _ATTEMPT_TABLE_COLUMNS)
        self.versions: dict[str, JobVersion] = {}
        self.attempts = 0
        self.content_bytes = 0
        """Bytes of payloads, results, metadata and errors, before compression."""

    def add(self, batch: JobsToArchive) -> None:
        """Add jobs, with their attempts."""
        with self._lock:
            self._add(batch)

    def _add(self, batch: JobsToArchive) -> None:
        jobs = [
            {**row, "payload": self._hide(row["job_type"], row["payload"])} for row in batch.jobs
        ]
        columns = {name: [row[name] for row in jobs] for name in _JOB_COLUMNS}
        names = [list(batch.tags.get(row["id"], {})) for row in jobs]
        values = [list(batch.tags.get(row["id"], {}).values()) for row in jobs]
        self._insert("job", _JOB_COLUMNS, columns, tags=(names, values))
        attempt_values: dict[str, list[Any]] = {
            "place": [row["id"] for row in batch.attempts],
            "job_id": [row["job_id"] for row in batch.attempts],
            **{name: [row[name] for row in batch.attempts] for name in _ATTEMPT_COLUMNS},
        }
        self._insert("attempt", _ATTEMPT_TABLE_COLUMNS, attempt_values)
        for row in jobs:
            self.versions[row["id"]] = JobVersion(
                microseconds(row["created_at"]), microseconds(row["updated_at"])
            )
            self.content_bytes += sum(
                len(row[name] or "") for name in ("payload", "result", "metadata", "error_message")
            )
        self.attempts += len(batch.attempts)

    def write(self) -> Path:
        """Write the file, oldest job first, and return its path."""
        path = self._folder / "jobs.parquet"
        with self._lock:
            self._copy_to(path)
        return path

    def _copy_to(self, path: Path) -> None:
        fields = ", ".join(f"{name} := {name}" for name in _ATTEMPT_COLUMNS)
        self._connection.execute(
            f"COPY (SELECT job.*, coalesce(of_job.list, []) AS {ATTEMPT_LIST} FROM job "
            f"LEFT JOIN (SELECT job_id, list(struct_pack({fields}) ORDER BY place) AS list "
            "FROM attempt GROUP BY job_id) AS of_job ON of_job.job_id = job.id "
            f"ORDER BY job.created_at, job.id) TO '{_quote(path)}' "
            "(FORMAT parquet, COMPRESSION zstd)"
        )

    def close(self) -> None:
        """Close the database."""
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
    """Return the versions of the jobs in a file, by id. Raises ExtraNotInstalled."""
    with naming_extra():
        import duckdb

    with duckdb.connect(config={"threads": "1", **NO_EXTENSIONS}) as connection:
        rows = connection.execute(
            "SELECT id, epoch_us(created_at), epoch_us(updated_at) "
            f"FROM read_parquet('{_quote(path)}')"
        ).fetchall()
    return {job_id: JobVersion(created, updated) for job_id, created, updated in rows}


def parquet_source(paths: Iterable[Path], *, with_name: bool = False) -> str:
    """Return a FROM item of these files; `with_name` adds the column `filename`. An older file may
    lack columns that newer ones have."""
    path_list = ", ".join(f"'{_quote(path)}'" for path in paths)
    name = ", filename = true" if with_name else ""
    return f"read_parquet([{path_list}], union_by_name = true{name})"


def empty_source() -> str:
    """Return a FROM item without rows that has all columns of a file."""
    attempt = ", ".join(f"{name} {kind}" for name, kind in _ATTEMPT_COLUMNS.items())
    kinds = {**_JOB_COLUMNS, **_TAG_COLUMN, ATTEMPT_LIST: f"STRUCT({attempt})[]"}
    column_list = ", ".join(f"CAST(NULL AS {kind}) AS {name}" for name, kind in kinds.items())
    return f"(SELECT {column_list} WHERE false)"


def make_secrets_hider(registry: Registry) -> Callable[[str, str], str]:
    """Return a function that takes a job type and a payload, and returns the payload without its
    secrets; both JSON."""

    def hide(job_type: str, payload: str) -> str:
        if registry.secrets_of(job_type) is None:
            return payload
        visible = registry.hide_secrets(job_type, json.loads(payload))
        return json.dumps(visible, ensure_ascii=True, separators=(",", ":"))

    return hide


def _quote(path: Path) -> str:
    return str(path).replace("'", "''")
