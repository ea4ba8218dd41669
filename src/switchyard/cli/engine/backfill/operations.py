"""`jobctl backfill`: watch, pause, resume and cancel backfills, and change their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.times import format_local
from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    print_json,
    say,
    table,
)
from switchyard.cli.engine.backfill import sources
from switchyard.cli.engine.backfill.options import NewWeightOption
from switchyard.cli.engine.backfill.view import BackfillDisplay
from switchyard.cli.engine.bulk.commands import (
    IdArgument,
    add_commands,
    change,
    change_limits,
)
from switchyard.cli.engine.bulk.rates import NewRateOption, parse_new_rate

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation
    from switchyard.services.engine.records.results import JobSummary

MAX_LISTED = 20
"""Jobs that `cancel --jobs` lists at most, of those that had already started."""
MAX_COUNTED = 100_000
"""Jobs that it counts at most."""
app = typer.Typer(
    no_args_is_help=True,
    help="Backfills (bulk publishing): start, list, show, watch, pause, resume, cancel, set.",
)
app.add_typer(sources.app, name="start")


VIEW = BackfillDisplay()
add_commands(app, VIEW)


@app.command()
def resume(operation_id: IdArgument, as_json: JsonOption = False) -> None:
    """Continue a backfill that was paused, or that failed and whose cause is fixed."""

    async def work(ledger: Ledger) -> BulkOperation:
        from switchyard.services.engine.backfill.spec import KIND
        from switchyard.services.engine.bulk import control as bulk_control

        return await bulk_control.resume(ledger, operation_id, kinds=[KIND])

    change(VIEW, work, "goes on as soon as a scheduler takes it", as_json=as_json)


@app.command(name="set")
def set_limits(
    operation_id: IdArgument,
    rate: NewRateOption = None,
    max_open: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Maximum number of its jobs that are unfinished at the same time. 0: no limit.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="AMOUNT",
            help="Maximum total cost of its language model calls, in the currency of "
            "JOBS_LLM_PRICES. 0: no limit.",
        ),
    ] = None,
    weight: NewWeightOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change limits of a backfill, also while it runs.

    Examples:

    ```
    jobctl backfill set ID --rate 20/s
    jobctl backfill set ID --max-open 100 --budget 25
    jobctl backfill set ID --weight 3
    ```
    """
    changes: dict[str, float | int | None] = {}
    if rate is not None:
        changes["rate"] = parse_new_rate(rate)
    if max_open is not None:
        changes["max_open"] = max_open or None
    if budget is not None:
        changes["budget"] = budget or None
    if weight is not None:
        changes["weight"] = weight
    if not changes:
        raise WrongUsage("name --rate, --max-open, --budget or --weight")
    change_limits(VIEW, operation_id, changes, as_json=as_json)


@app.command()
def cancel(
    operation_id: IdArgument,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Also cancel its published jobs that have not started.")
    ] = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a backfill permanently.

    Jobs that it has published still run, unless --jobs is given. Then it lists the jobs that had
    started before.
    """
    from switchyard.services.engine.backfill.starting import Backfills
    from switchyard.services.engine.bulk.control import require_bulk
    from switchyard.services.engine.records.requests import JobFilter
    from switchyard.services.engine.records.states import State

    quiet_logs()
    settings = load_settings()

    async def work() -> tuple[str, int, list[JobSummary], int]:
        async with open_ledger(settings) as ledger:
            backfills = Backfills.from_settings(
                settings, load_registry(settings, include), ledger, include
            )
            full_id = (await require_bulk(ledger, operation_id, *VIEW.kinds)).id
            cancelled_jobs = await backfills.cancel(full_id, jobs=jobs)
            if not jobs or as_json:
                return full_id, cancelled_jobs, [], 0
            matching = (
                JobFilter(operation_id=full_id),
                {State.RUNNING, State.SUCCEEDED, State.DEAD},
            )
            return (
                full_id,
                cancelled_jobs,
                await ledger.job_reads.matching_jobs(*matching, limit=MAX_LISTED),
                await ledger.job_reads.count_matching(*matching, at_most=MAX_COUNTED),
            )

    operation_id, cancelled_jobs, started_jobs, total = run(work())
    if as_json:
        from switchyard.api.models.backfills import CancelledBackfill
        from switchyard.services.engine.records.bulk import BulkState

        state = BulkState.CANCELLED
        print_json(CancelledBackfill(id=operation_id, state=state, cancelled_jobs=cancelled_jobs))
        return
    say(f"{operation_id} is cancelled" + (f", and {cancelled_jobs:,} of its jobs" if jobs else ""))
    if started_jobs:
        _print_started(operation_id, started_jobs, total)


def _print_started(operation_id: str, started_jobs: Sequence[JobSummary], total: int) -> None:
    rows = table("JOB", "STATE", "TYPE", "BEGAN")
    for job in started_jobs:
        began = "" if job.started_at is None else format_local(job.started_at)
        add_row(rows, cell(job.id), job.state, cell(job.job_type), began)
    console().print(rows)
    more = "+" if total == MAX_COUNTED else ""
    notice = f"{pluralize(total, 'job')}{more} had begun before"
    if total > len(started_jobs):
        notice += f"; all: `jobctl jobs list --operation {operation_id}`"
    say(notice)
