"""The key from which the ids of future jobs are derived."""

from __future__ import annotations

from sqlalchemy import Connection, text

from switchyard.services.engine.records.job_ids import JobIds


def read_job_ids(connection: Connection) -> JobIds:
    """Return the generator of job ids."""
    key = connection.scalar(text("SELECT job_id_key FROM system_id"))
    return JobIds(None if key is None else bytes.fromhex(key))
