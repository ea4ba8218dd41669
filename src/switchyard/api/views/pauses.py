"""Pauses as the API answers and `jobctl … --json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.api.models.pauses import PauseList, PauseView

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.pauses import PauseRecord
    from switchyard.services.engine.records.results import JobSummary


def view_pause(record: PauseRecord, held: int | None = None) -> PauseView:
    """Show a pause, with the number of jobs that it holds where that was counted."""
    return PauseView.from_record(record, pause_id=record.id, held=held)


async def view_pauses(ledger: Ledger, *, ended: bool, limit: int) -> PauseList:
    """Show the pauses in force with the jobs that each holds, or those that have ended. Raises
    LedgerUnavailable."""
    if ended:
        records = await ledger.pauses.history(limit)
        return PauseList(pauses=[view_pause(each) for each in records])
    held = await ledger.pauses.held_by_pause()
    return PauseList(pauses=[view_pause(each, number) for each, number in held[:limit]])


async def pause_of(ledger: Ledger, job: JobSummary) -> PauseRecord | None:
    """Return a pause that keeps a job from beginning; None where none does, or the job runs or has
    ended. Raises LedgerUnavailable."""
    if not job.waits:
        return None
    return (await ledger.pauses.active()).pause_of(job.lane, job.worker, job.job_type, job.source)
