"""`jobctl dead purge` and `purges`: delete dead letters, keeping their records, and list who did
so. `jobctl dead index`: make the records match the letters on the broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    cell,
    confirm,
    echo,
    print_json,
    require_answer,
    say,
    styled,
)
from switchyard.cli.base.shared_options import LimitOption
from switchyard.cli.engine.bulk.commands import list_operations
from switchyard.cli.engine.bulk.rates import WhyOption
from switchyard.cli.engine.bulk.view import BulkListing
from switchyard.cli.engine.dead.letters import index_new_letters
from switchyard.cli.engine.dead.options import AllOption, IdsArgument, with_ids, with_letter_filter

if TYPE_CHECKING:
    from switchyard.api.models.dead import PurgeView
    from switchyard.services.engine.dead.letters import LetterFilter
    from switchyard.services.engine.dead.purge import PurgeProgress
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.ledger.leases import Sleep
    from switchyard.services.engine.records.bulk import BulkOperation

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; show what would happen.")
]


@with_letter_filter
def purge(
    ids: IdsArgument = None,
    everything: AllOption = False,
    why: WhyOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
    *,
    letter_filter: Any,
) -> None:
    """Delete dead letters from the broker permanently; the ledger keeps their records.

    Asks for confirmation. Ctrl-C stops it; letters that are not yet purged stay. `jobctl dead
    purges` lists past purges.

    Examples:

    ```
    jobctl dead purge --older-than 3d --dry-run
    jobctl dead purge --group ab12cd34 --why 'test data'
    ```
    """
    letter_filter = with_ids(letter_filter, ids, everything=everything)
    if not (dry_run or yes):
        require_answer("purge")
    quiet_logs()
    progress, operation = run(_purge(letter_filter, include, why=why, dry_run=dry_run, yes=yes))
    missing = max(0, len(letter_filter.ids) - progress.purged) if letter_filter.ids else 0
    if as_json:
        from switchyard.api.views.dead import view_purge, view_purge_plan

        print_json(view_purge_plan(progress) if operation is None else view_purge(operation))
    else:
        echo(f"{progress.purged:,} {'would be purged' if dry_run else 'purged'}")
    if operation is not None and operation.state != "completed":
        raise CommandFailed(
            f"{operation.id} is {operation.state}: {operation.note or 'it was interrupted'}"
        )
    if missing:
        raise CommandFailed(
            f"{missing} of these ids not found in jobs.dead: see `jobctl dead list --state all`"
        )


async def _purge(
    letter_filter: LetterFilter,
    include: list[str] | None,
    *,
    why: str | None,
    dry_run: bool,
    yes: bool,
) -> tuple[PurgeProgress, BulkOperation | None]:
    from switchyard.cli.base.common import current_user
    from switchyard.cli.engine.bulk.foreground import run_in_foreground
    from switchyard.services.engine.bulk import control as bulk_control
    from switchyard.services.engine.dead.groups import with_full_ids
    from switchyard.services.engine.dead.purge import (
        PurgeHandler,
        PurgeProgress,
        count_letters,
        start_purge,
    )

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    async with open_ledger(settings, registry) as ledger:
        # Index first: a letter that is indexed only after it was purged would be listed as waiting.
        await index_new_letters(settings, ledger, registry)
        letter_filter = await with_full_ids(ledger, letter_filter)
        if dry_run or not yes:
            count = await count_letters(settings, ledger, letter_filter, make_announced_sleep())
            if dry_run or not count.purged:
                return count, None
            confirm_letters("purge", count.purged, letter_filter)
        operation = await run_in_foreground(
            ledger,
            [PurgeHandler(settings, ledger)],
            lambda hold: start_purge(
                ledger, letter_filter, created_by=current_user(), reason=why, hold=hold
            ),
            counted="scanned",
            stop=lambda operation_id: bulk_control.cancel(ledger, operation_id),
        )
        return PurgeProgress.from_operation(operation), operation


def purges(limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """List purges, newest first: who purged which letters, when and why."""
    list_operations(PurgeListing(), limit, as_json=as_json)


class PurgeListing(BulkListing["BulkOperation"]):
    """Listing of purges."""

    empty_text = "No purges."
    columns = ("ID", "STATE", "PURGED", "BY", "AGE", "WHAT", "WHY")
    right = ("PURGED",)

    @property
    def kinds(self) -> tuple[str, ...]:
        from switchyard.services.engine.dead.purge import KIND

        return (KIND,)

    async def read(self, ledger: Ledger, operation: BulkOperation) -> BulkOperation:
        return operation

    def to_model(self, operation: BulkOperation) -> PurgeView:
        """Return a purge as `--json` prints it."""
        from switchyard.api.views.dead import view_purge

        return view_purge(operation)

    def row(self, operation: BulkOperation) -> Sequence[str]:
        return (
            operation.id,
            styled(operation.state),
            f"{operation.counts.get('purged', 0):,}",
            cell(operation.created_by),
            age(operation.created_at),
            cell(operation.title),
            cell(operation.reason or ""),
        )


def index(include: IncludeOption = None, as_json: JsonOption = False) -> None:
    """Read jobs.dead, and make the ledger list exactly the dead letters that are there.

    Use it after the ledger was restored to an older copy while the broker kept its messages.
    Nothing is removed from jobs.dead. Letters that are no longer there are listed as dropped.
    """
    from switchyard.services.engine.dead.indexing import ReindexResult, reindex
    from switchyard.services.engine.identity.broker import require_same_system

    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)

    async def work() -> ReindexResult:
        async with open_ledger(settings, registry) as ledger:
            await require_same_system(settings, ledger)
            return await reindex(settings, ledger, registry, make_announced_sleep())

    done = run(work())
    if as_json:
        print_json(asdict(done))
        return
    echo(
        f"{pluralize(done.letters, 'letter')} in {pluralize(done.messages, 'message')} of "
        f"jobs.dead, all listed; {done.dropped:,} that the broker has no longer noted as dropped"
    )


def make_announced_sleep() -> Sleep:
    """Return a function that sleeps while another process reads through `jobs.dead`, and says so at
    its first call."""
    import asyncio

    is_announced = False

    async def wait(seconds: float) -> None:
        nonlocal is_announced
        if not is_announced:
            say(
                "waits until another redrive or purge has ended: see `jobctl dead redrives list` "
                "and `jobctl dead purges`"
            )
            is_announced = True
        await asyncio.sleep(seconds)

    return wait


def confirm_letters(verb: str, number: int, letter_filter: LetterFilter) -> None:
    """Ask whether so many letters are meant. Raises Abort when the answer is no."""
    letters = "one dead letter" if number == 1 else f"{number:,} dead letters"
    question = f"{verb} {letters} ({letter_filter.describe()})?"
    confirm(question[0].upper() + question[1:], abort=True)
