"""`jobctl jobs release`: letting a job go on without the dead ones that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.output import JsonOption, echo, print_json
from switchyard.cli.engine.jobs.jobs import JobIdArgument, full_job_id

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.joins import JoinRecord


def release(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Let a job that waits for other jobs run without those that are dead.

    It runs as soon as the remaining ones have ended. Exit code 1: it does not wait for other jobs.
    """
    job_id, join = run(_release(load_settings(), job_id))
    if as_json:
        print_json({"job_id": job_id, "open": join.open, "dead": join.dead})
    elif join.fulfilled_at is not None:
        echo(f"{job_id} goes on without {join.dead:,} dead jobs: the scheduler publishes it soon")
    else:
        echo(f"{job_id} goes on without the dead when the {join.open:,} that are open have ended")


async def _release(settings: Settings, job_id: str) -> tuple[str, JoinRecord]:
    from switchyard.services.engine.publishing.releasing import release as go_on

    async with open_ledger(settings) as ledger:
        full_id = await full_job_id(ledger, job_id)
        return full_id, await go_on(ledger, full_id)
