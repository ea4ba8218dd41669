"""Wait for the end of jobs, by polling the ledger at growing intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed
from switchyard.services.common.durations import PollPauses

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.progress import ProgressRecord
    from switchyard.services.engine.records.results import JobSummary
    from switchyard.services.engine.records.states import State

FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.05, 1.0
"""Seconds between polls: each interval is half as long again as the one before."""
BATCH_SIZE = 500
"""Ids read at once."""
PIPELINE_BATCH_SIZE = 100
"""Pipelines read at once."""


async def wait_for_end(
    ledger: Ledger,
    job_ids: Sequence[str],
    *,
    timeout: float | None = None,
    on_change: Callable[[str, State], None] = lambda job_id, state: None,
    on_progress: Callable[[str, ProgressRecord], None] | None = None,
) -> dict[str, State]:
    """Return the states in which jobs have ended. `on_change` is called for every new state,
    `on_progress` for every progress that a job reports.

    Raises CommandFailed after `timeout` seconds.
    """
    from switchyard.services.engine.records.states import FINISHED

    pauses = PollPauses(FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL, timeout)
    seen: dict[str, State] = {}
    reported: dict[str, ProgressRecord] = {}
    while True:
        open_ids = [job_id for job_id in job_ids if seen.get(job_id) not in FINISHED]
        for start in range(0, len(open_ids), BATCH_SIZE):
            chunk = open_ids[start : start + BATCH_SIZE]
            # Before the states, as a job reports its last progress before its end.
            reports = await ledger.progress.progress(chunk) if on_progress is not None else {}
            states = await ledger.job_reads.states(chunk)
            for job_id, state in states.items():
                if seen.get(job_id) is not state:
                    seen[job_id] = state
                    on_change(job_id, state)
                    pauses.restart()
            for job_id, progress in reports.items():
                if on_progress is not None and reported.get(job_id) != progress:
                    reported[job_id] = progress
                    on_progress(job_id, progress)
        left = [job_id for job_id in open_ids if seen.get(job_id) not in FINISHED]
        if not left:
            return seen
        if (pause := pauses.next()) is None:
            raise _timeout_error(timeout, left[0], seen.get(left[0]), len(left))
        await asyncio.sleep(pause)


async def wait_for_pipelines(
    ledger: Ledger, job_ids: Sequence[str], *, timeout: float | None = None
) -> dict[str, list[JobSummary]]:
    """Return the jobs and all that followed from them, oldest first, when all have ended.

    Next stages are recorded before the job that they follow from ends, so none is missed. Raises
    CommandFailed after `timeout` seconds.
    """
    from switchyard.services.engine.records.states import FINISHED

    pauses = PollPauses(FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL, timeout)
    ended: dict[str, list[JobSummary]] = {}
    while True:
        left = [job_id for job_id in job_ids if job_id not in ended]
        unfinished: JobSummary | None = None
        count = 0
        for start in range(0, len(left), PIPELINE_BATCH_SIZE):
            pipelines = await ledger.job_reads.pipelines(left[start : start + PIPELINE_BATCH_SIZE])
            for job_id, jobs in pipelines.items():
                open_jobs = [job for job in jobs if job.state not in FINISHED]
                count += len(open_jobs)
                if open_jobs:
                    unfinished = unfinished or open_jobs[0]
                else:
                    ended[job_id] = jobs
                    pauses.restart()
        if len(ended) == len(set(job_ids)):
            return ended
        if (pause := pauses.next()) is None:
            raise _timeout_error(
                timeout,
                unfinished.id if unfinished else left[0],
                unfinished.state if unfinished else None,
                max(count, 1),
            )
        await asyncio.sleep(pause)


def _timeout_error(
    timeout: float | None, job_id: str, state: State | None, number: int
) -> CommandFailed:
    others = f" and {number - 1} more" if number > 1 else ""
    return CommandFailed(
        f"not ended within {timeout:g} s: {job_id} ({state or 'unknown'}){others}; it goes on: "
        f"`jobctl jobs watch {job_id}`"
    )
