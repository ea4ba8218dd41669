"""The progress and the checkpoints that running jobs report; the next attempt reads these."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from switchyard.broker.message import JobMessage
from switchyard.services.engine.ledger.sql.codec import fingerprint, to_json
from switchyard.services.engine.ledger.sql.progress_ops import SaveProgress
from switchyard.services.engine.ledger.sql.repository import Repository, read
from switchyard.services.engine.ledger.sql.tables import job_checkpoints, job_progress, jobs
from switchyard.services.engine.records.progress import ProgressRecord, ProgressRequest


class ProgressRepository(Repository):
    """Stores progress and checkpoints of running jobs. All methods raise LedgerUnavailable when the
    database is away."""

    async def save(self, request: ProgressRequest) -> bool:
        """Record a job's progress, or its checkpoint in the place of an earlier one. False when
        somebody has taken the job over, or it has ended: nothing is changed then."""
        return await self._committer.submit(SaveProgress(request))

    @read
    def progress(self, connection: Connection, job_ids: Sequence[str]) -> dict[str, ProgressRecord]:
        """Return the last progress of each of these jobs that has reported any."""
        query = select(
            job_progress.c.job_id,
            job_progress.c.fraction,
            job_progress.c.note,
            job_progress.c.reported_at,
        ).where(
            job_progress.c.job_id.in_(job_ids),
            job_progress.c.claim_id == jobs.c.claim_id,
            job_progress.c.job_id == jobs.c.id,
        )
        return {row[0]: ProgressRecord(*row[1:]) for row in connection.execute(query)}

    @read
    def last_checkpoint(self, connection: Connection, message: JobMessage) -> str | None:
        """Return the checkpoint, JSON, that an earlier attempt at this job has kept; None where
        there is none, or where it belongs to another payload, as a redrive may have changed
        it."""
        content_hash = fingerprint(message.job_type, to_json(message.payload))
        query = select(job_checkpoints.c.data).where(
            job_checkpoints.c.job_id == message.job_id, job_checkpoints.c.work == content_hash
        )
        data: str | None = connection.scalar(query)
        return data
