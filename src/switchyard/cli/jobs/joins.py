"""`jobctl jobs release`: letting a job go on without the dead ones that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import JsonOption, echo, print_json
from switchyard.cli.jobs.jobs import JobIdArgument, unknown_job

if TYPE_CHECKING:
    from switchyard.services.records import JoinRecord
    from switchyard.services.settings import Settings


def release(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Let a job that waits for other jobs run without those that are dead.

    It runs as soon as the remaining ones have ended. Exit code 1: it does not wait for other jobs.
    """
    join = run(_release(load_settings(), job_id))
    if as_json:
        print_json({"job_id": job_id, "open": join.open, "dead": join.dead})
    elif join.fulfilled_at is not None:
        echo(f"{job_id} goes on without {join.dead:,} dead jobs: the scheduler publishes it soon")
    else:
        echo(f"{job_id} goes on without the dead when the {join.open:,} that are open have ended")


async def _release(settings: Settings, job_id: str) -> JoinRecord:
    async with open_ledger(settings) as ledger:
        before = await ledger.join(job_id)
        if before is None:
            if await ledger.get(job_id) is None:
                raise unknown_job(job_id)
            raise CommandFailed(f"job {job_id} waits for no other")
        if before.held:
            raise CommandFailed(f"job {job_id} waits for a backfill that goes on: cancel that one")
        went = await ledger.release_join(job_id, ledger.clock.time(), when_dead="go_on")
        after = await ledger.join(job_id)
    if went is None or after is None:
        raise CommandFailed(f"job {job_id} does not wait any more: `jobctl jobs show {job_id}`")
    return after
