"""Release a job that waits for others, so that it runs without the dead ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.services.common.errors import ConflictError

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.joins import JoinRecord


class WaitsForNone(ConflictError):
    """The job waits for no other job, or it waits for a backfill that still goes on."""


async def release_join(ledger: Ledger, job_id: str) -> JoinRecord:
    """Let a job run without those dead jobs that it waits for, as soon as the others have ended;
    return its join. Calling it again changes nothing as long as the job waits.

    Raises UnknownJob, WaitsForNone, LedgerError.
    """
    join = await ledger.joins.join(job_id)
    if join is None:
        await ledger.job_reads.require(job_id)
        raise WaitsForNone(f"job {job_id} waits for no other")
    if join.held:
        raise WaitsForNone(f"job {job_id} waits for a backfill that goes on: cancel that one")
    is_pending = await ledger.joins.seal(job_id, ledger.clock.time(), when_dead="go_on")
    sealed_join = await ledger.joins.join(job_id)
    if is_pending is None or sealed_join is None:  # it began, or was removed, meanwhile
        raise WaitsForNone(f"job {job_id} does not wait any more: `jobctl jobs show {job_id}`")
    return sealed_join
