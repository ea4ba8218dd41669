"""`jobctl jobs republish`: what waits by the ledger, sent to a broker that has lost it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import load_settings, open_ledger, quiet_logs, run
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.lanes import known_lane
from switchyard.cli.base.output import YesOption, confirm, echo, say

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings


def republish(
    lane: Annotated[
        str | None, typer.Option(help="Only jobs of this lane. Default: all lanes.")
    ] = None,
    yes: YesOption = False,
) -> None:
    """Publish again all jobs that the ledger has as waiting: after the broker was lost or restored.

    Safe to use: a job that is still on the broker runs only once. The scheduler publishes them as
    fast as the lanes have room.
    """
    known_lane(lane)
    quiet_logs()
    settings = load_settings()
    number = run(_waiting(settings, lane))
    if not number:
        say("No job waits in a queue by the ledger: nothing to publish again.")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUsage("to publish again without a terminal to ask at, give --yes")
        confirm(f"Publish {pluralize(number, 'job')} again?", abort=True)
    done = run(_republish(settings, lane))
    echo(f"{pluralize(done, 'job is', 'jobs are')} published again by the scheduler")


async def _waiting(settings: Settings, lane: str | None) -> int:
    from switchyard.services.engine.records.states import IN_QUEUES

    async with open_ledger(settings) as ledger:
        counts = await ledger.job_reads.counts()
    wanted = counts.values() if lane is None else [counts.get(lane, {})]
    return sum(states.get(state, 0) for states in wanted for state in IN_QUEUES)


async def _republish(settings: Settings, lane: str | None) -> int:
    async with open_ledger(settings) as ledger:
        return await ledger.jobs.publish_again(lane)
