"""`jobctl dead purge`: dead letters go away; their record stays."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from cli.dead import bring_up_to_date
from cli.errors import CommandFailed, WrongUsage
from cli.letter_options import AllOption, IdsArgument, chosen, filtered
from cli.output import JsonOption, print_json, progress_bar, say

if TYPE_CHECKING:
    from services.leases import Wait
    from services.letters import LetterFilter
    from services.redrive_sending import Tally

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


@filtered
def purge(
    ids: IdsArgument = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
    *,
    which: Any,
) -> None:
    """Throw dead letters away for good; the ledger remembers them. Always asks first."""
    which = chosen(which, ids, everything=everything)
    if not (dry_run or yes or sys.stdin.isatty()):
        raise WrongUsage("to purge without a terminal to ask at, give --yes")
    quiet_logs()
    tally = run(_purge(which, include, dry_run=dry_run, yes=yes))
    missing = max(0, len(which.ids) - tally.matched) if which.ids else 0
    if as_json:
        print_json(asdict(tally) | {"dry_run": dry_run, "missing": missing})
    else:
        typer.echo(f"{tally.done:,} {'would be purged' if dry_run else 'purged'}")
    if missing:
        raise CommandFailed(
            f"{missing} of the ids named are not in jobs.dead: see `jobctl dead list --state all`"
        )


async def _purge(
    which: LetterFilter, include: list[str] | None, *, dry_run: bool, yes: bool
) -> Tally:
    from services.redrive import Redriver

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    async with open_ledger(settings) as ledger:
        # A letter that is not indexed yet would be noted as waiting after it has gone.
        await bring_up_to_date(settings, ledger, registry)
        if not (dry_run or yes):
            redriver = Redriver(settings, registry, ledger, wait=wait_aloud())
            found = await redriver.purge(which, dry_run=True)
            if found.matched:
                ask("purge", found.matched, which)
        with progress_bar("purge") as show:

            def on_progress(tally: Tally, total: int) -> None:
                show(tally.scanned, total, f"{tally.done:,} done")

            redriver = Redriver(
                settings, registry, ledger, on_progress=on_progress, wait=wait_aloud()
            )
            return await redriver.purge(which, dry_run=dry_run)


def wait_aloud() -> Wait:
    """To wait until nobody else goes through `jobs.dead`, and say so."""
    import asyncio

    has_said = False

    async def wait(seconds: float) -> None:
        nonlocal has_said
        if not has_said:
            say("Waits until another redrive or purge lets it: see `jobctl dead redrives list`")
            has_said = True
        await asyncio.sleep(seconds)

    return wait


def ask(verb: str, number: int, which: LetterFilter) -> None:
    """Raises Abort when the answer is no."""
    letters = "one dead letter" if number == 1 else f"{number:,} dead letters"
    question = f"{verb} {letters} ({which.describe()})?"
    typer.confirm(question[0].upper() + question[1:], abort=True, err=True)
