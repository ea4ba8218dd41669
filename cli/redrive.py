"""`jobctl dead redrive` and `jobctl dead purge`: dead letters go back, or go away."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

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
from cli.dead import (
    ErrorTypeOption,
    LaneOption,
    OlderOption,
    ReasonOption,
    TypeOption,
    bring_up_to_date,
    known_reason,
)
from cli.durations import optional_duration
from cli.errors import CommandFailed, WrongUsage
from cli.output import JsonOption, console, print_json, say

if TYPE_CHECKING:
    from services.redrive import Change, LetterFilter, Redriver, Tally

IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Only these dead letters.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them, where no filter is given.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]


def redrive(
    ids: IdsArgument = None,
    reason: ReasonOption = None,
    job_type: TypeOption = None,
    lane: LaneOption = None,
    error_type: ErrorTypeOption = None,
    older_than: OlderOption = None,
    everything: AllOption = False,
    to: Annotated[
        str | None, typer.Option(metavar="ROUTING_KEY", help="Send them here instead.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change the message: payload.x=1, priority=9; checked against the job type; "
            "repeatable.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The oldest so many.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to their lanes, with all their attempts before them again.

    Each is published, confirmed, and only then taken out of the dead letters. Jobs that have
    succeeded meanwhile are dropped. Asks before more than one. Exit code 1: something was
    refused or is not valid.
    """
    from services.letter_changes import Change, parse_assignment

    which = _filter(ids, reason, job_type, lane, error_type, older_than, everything)
    change = Change(to=to, values=dict(parse_assignment(text) for text in assignments or ()))
    run(
        _handle(
            Command("redrive", "redriven", may_be_one=True),
            which,
            lambda redriver, dry: redriver.redrive(which, change, dry_run=dry, limit=limit),
            change=change,
            dry_run=dry_run,
            yes=yes,
            limit=limit,
            include=include,
            as_json=as_json,
        )
    )


def purge(
    ids: IdsArgument = None,
    reason: ReasonOption = None,
    job_type: TypeOption = None,
    lane: LaneOption = None,
    error_type: ErrorTypeOption = None,
    older_than: OlderOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Throw dead letters away for good; the ledger remembers that. Always asks first."""
    from services.redrive import Change

    which = _filter(ids, reason, job_type, lane, error_type, older_than, everything)
    run(
        _handle(
            Command("purge", "purged", may_be_one=False),
            which,
            lambda redriver, dry: redriver.purge(which, dry_run=dry),
            change=Change(),
            dry_run=dry_run,
            yes=yes,
            limit=None,
            include=include,
            as_json=as_json,
        )
    )


class Command:
    """The words of a command, and whether it may touch a single letter without asking."""

    def __init__(self, verb: str, done: str, *, may_be_one: bool) -> None:
        self.verb = verb
        self.done = done
        self.may_be_one = may_be_one


Work = Callable[["Redriver", bool], Awaitable["Tally"]]


def _filter(
    ids: list[str] | None,
    reason: str | None,
    job_type: str | None,
    lane: str | None,
    error_type: str | None,
    older_than: str | None,
    everything: bool,
) -> LetterFilter:
    """Raises WrongUsage where nothing says which letters are meant."""
    from services.redrive import LetterFilter

    known_reason(reason)
    which = LetterFilter(
        ids=frozenset(ids or ()),
        reason=reason,
        job_type=job_type,
        lane=lane,
        error_type=error_type,
        older_than=optional_duration(older_than),
    )
    if which.is_empty and not everything:
        raise WrongUsage("which ones? name ids, or a filter such as --type, or --all")
    if everything and not which.is_empty:
        raise WrongUsage("--all is for all of them: leave it out, or the ids and filters")
    return which


async def _handle(
    command: Command,
    which: LetterFilter,
    work: Work,
    *,
    change: Change,
    dry_run: bool,
    yes: bool,
    limit: int | None,
    include: list[str] | None,
    as_json: bool,
) -> None:
    asks = not (dry_run or yes or (command.may_be_one and (limit == 1 or len(which.ids) == 1)))
    if asks and not sys.stdin.isatty():
        raise WrongUsage(f"to {command.verb} without a terminal to ask at, give --yes")
    quiet_logs()
    async with _redriver(include) as redriver:
        if asks:
            found = await work(redriver(lambda tally, total: None), True)
            number = found.matched
            if number and (number > 1 or not command.may_be_one):
                letters = "one dead letter" if number == 1 else f"{number:,} dead letters"
                typer.confirm(f"{command.verb} {letters}?".capitalize(), abort=True, err=True)
        with _progress(command.verb) as on_progress:
            tally = await work(redriver(on_progress), dry_run)
    _report(command, which, tally, dry_run=dry_run, as_json=as_json)


@asynccontextmanager
async def _redriver(
    include: list[str] | None,
) -> AsyncIterator[Callable[[Callable[[Tally, int], None]], Redriver]]:
    """Makes redrivers that report their progress, on an index that is up to date."""
    from services.redrive import Redriver

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    async with open_ledger(settings) as ledger:
        # A letter that is not indexed yet would be noted as waiting after it has gone.
        await bring_up_to_date(settings, ledger, registry)
        yield lambda on_progress: Redriver(settings, registry, ledger, on_progress=on_progress)


@contextmanager
def _progress(verb: str) -> Iterator[Callable[[Tally, int], None]]:
    """A progress bar on stderr, where that is a terminal."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda tally, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(verb), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[of]}"))
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(verb, total=None, of="")

        def on_progress(tally: Tally, total: int) -> None:
            bar.update(task, completed=tally.scanned, total=total, of=f"{tally.done:,} done")

        yield on_progress


def _report(
    command: Command, which: LetterFilter, tally: Tally, *, dry_run: bool, as_json: bool
) -> None:
    missing = len(which.ids) - tally.matched if which.ids else 0
    if as_json:
        print_json(asdict(tally) | {"dry_run": dry_run, "missing": max(0, missing)})
    else:
        for note in tally.notes:
            say(note)
        would = f"would be {command.done}" if dry_run else command.done
        parts = [f"{tally.done:,} {would}"]
        for number, what in (
            (tally.dropped, "dropped: their jobs have ended meanwhile"),
            (tally.refused, "refused: still dead letters"),
            (tally.invalid, "not valid: still dead letters"),
        ):
            if number:
                parts.append(f"{number:,} {what}")
        typer.echo("; ".join(parts))
    if missing > 0:
        raise CommandFailed(
            f"{missing} of the ids named are not in jobs.dead: see `jobctl dead list --state all`"
        )
    if tally.refused or tally.invalid:
        raise CommandFailed(
            f"{tally.refused + tally.invalid} dead letters are still in their place"
        )
