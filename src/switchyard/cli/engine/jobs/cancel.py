"""Cancel one job, also one that runs: `jobctl jobs cancel ID`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.common import (
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, print_json, say
from switchyard.cli.base.shared_options import full_job_id

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.states import State

STOP_TIMEOUT = 5.0
"""Seconds that the command waits for a running job to stop."""


def cancel_one(job_id: str, *, as_json: bool) -> None:
    """Cancel a job, and wait up to STOP_TIMEOUT until its worker has stopped it. Raises
    CommandFailed if it has already ended, or has not stopped by then."""
    quiet_logs()
    from switchyard.services.engine.records.states import FINISHED

    job_id, state = run(_cancel(load_settings(), job_id))
    if as_json:
        from switchyard.api.models.jobs import CancelledJob

        print_json(CancelledJob(job_id=job_id, state=state, stopping=state not in FINISHED))
    elif state == "cancelled":
        echo(f"{job_id} cancelled")
    if state != "cancelled":
        raise CommandFailed(
            f"job {job_id} has not stopped within {STOP_TIMEOUT:g} s, it is {state}: its worker "
            f"has been told, and it is not run again; see `jobctl jobs watch {job_id}`"
        )


async def _cancel(settings: Settings, job_id: str) -> tuple[str, State]:
    from switchyard.services.engine.records.errors import UnknownJob
    from switchyard.services.engine.records.results import AlreadyFinished, NoSuchJob, Running
    from switchyard.services.engine.records.states import State

    async with open_ledger(settings) as ledger:
        job_id = await full_job_id(ledger, job_id)
        answer = await ledger.jobs.cancel(job_id, ledger.clock.time())
        if isinstance(answer, NoSuchJob):
            raise UnknownJob(job_id)
        if isinstance(answer, AlreadyFinished):
            if answer.state is State.CANCELLED:
                return job_id, answer.state
            raise CommandFailed(f"job {job_id} has ended already: it is {answer.state}")
        if not isinstance(answer, Running):
            return job_id, State.CANCELLED
        return job_id, await _stop_running(settings, ledger, job_id, answer.worker_id)


async def _stop_running(settings: Settings, ledger: Ledger, job_id: str, worker_id: str) -> State:
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.cli.base.waiting import wait_for_end
    from switchyard.services.engine.runtime.worker_commands import send_cancel

    require_broker(settings)
    say(f"it runs on {worker_id}: telling the workers to stop it")
    async with Publisher(settings, name="jobctl") as publisher:
        await send_cancel(publisher, job_id)
    try:
        return (await wait_for_end(ledger, [job_id], timeout=STOP_TIMEOUT))[job_id]
    except CommandFailed:
        return (await ledger.job_reads.require(job_id)).state
