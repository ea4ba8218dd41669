"""`jobctl jobs republish`: send jobs that the ledger has as waiting to a broker that lost them;
`jobctl jobs release`: let a job go on without the dead jobs that it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    confirm,
    echo,
    print_json,
    require_answer,
    say,
)
from switchyard.cli.base.shared_options import JobIdArgument, check_lane, full_job_id

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.joins import JoinRecord


def republish(
    lane: Annotated[
        str | None, typer.Option(help="Only jobs of this lane. Default: all lanes.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Publish all waiting jobs of the ledger again, after the broker was lost or restored.

    A job that is still on the broker runs only once. The scheduler publishes the jobs as fast as
    the lanes have room.
    """
    check_lane(lane)
    quiet_logs()
    settings = load_settings()
    number = run(_count_waiting(settings, lane))
    if not number:
        say("No job waits in a queue by the ledger: nothing to publish again.")
        return
    if not yes:
        require_answer("publish again")
        confirm(f"Publish {pluralize(number, 'job')} again?", abort=True)
    republished = run(_republish(settings, lane))
    echo(f"{pluralize(republished, 'job is', 'jobs are')} published again by the scheduler")


async def _count_waiting(settings: Settings, lane: str | None) -> int:
    from switchyard.services.engine.records.states import IN_QUEUES

    async with open_ledger(settings) as ledger:
        counts = await ledger.job_reads.counts()
    lane_counts = counts.values() if lane is None else [counts.get(lane, {})]
    return sum(states.get(state, 0) for states in lane_counts for state in IN_QUEUES)


async def _republish(settings: Settings, lane: str | None) -> int:
    async with open_ledger(settings) as ledger:
        return await ledger.jobs.requeue_all(lane)


def release(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Let a job that waits for other jobs run without those that are dead.

    It runs as soon as the remaining ones have ended. Exit code 1: it does not wait for other jobs.
    """
    job_id, join = run(_release(load_settings(), job_id))
    if as_json:
        from switchyard.api.models.jobs import ReleasedJob

        print_json(ReleasedJob.from_record(join, job_id=job_id))
    elif join.fulfilled_at is not None:
        echo(f"{job_id} goes on without {join.dead:,} dead jobs: the scheduler publishes it soon")
    else:
        echo(f"{job_id} goes on without the dead when the {join.open:,} that are open have ended")


async def _release(settings: Settings, job_id: str) -> tuple[str, JoinRecord]:
    from switchyard.services.engine.publishing.release_join import release_join

    async with open_ledger(settings) as ledger:
        full_id = await full_job_id(ledger, job_id)
        return full_id, await release_join(ledger, full_id)
