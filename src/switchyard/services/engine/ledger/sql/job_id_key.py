"""The key with which the ids of jobs to come are made."""

from __future__ import annotations

from sqlalchemy import Connection, text

from switchyard.services.engine.records.job_ids import JobIds


def read_job_ids(connection: Connection) -> JobIds:
    """Return how ids of jobs are made."""
    key = connection.scalar(text("SELECT job_id_key FROM system_id"))
    return JobIds(None if key is None else bytes.fromhex(key))
