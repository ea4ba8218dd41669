"""How commands are told which dead letters are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.durations import DURATION_HELP, optional_duration
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import LaneOption, known_lane, with_options

if TYPE_CHECKING:
    from switchyard.services.engine.dead.letters import LetterFilter
    from switchyard.services.engine.ledger import Ledger

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids of dead letters, from `jobctl dead list`; the first six characters or more are "
        "enough.",
    ),
]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="All dead letters. Required if there are neither ids nor filters."),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="Only this group, from `jobctl dead groups`; the first characters are enough.",
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        help="Only letters that died for this reason: exhausted, permanent, expired, "
        "overflowed, displaced, unroutable, refused, malformed, "
        "invalid_payload or crashed."
    ),
]
TypeOption = Annotated[
    str | None, typer.Option("--type", metavar="JOB_TYPE", help="Only this job type.")
]
ErrorTypeOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only this exception type, for example TimeoutError."),
]
OperationOption = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only jobs of this backfill, and their follow-up jobs."),
]
OlderOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Only letters that died at least this long ago, {DURATION_HELP}."
    ),
]
YoungerOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Only letters that died at most this long ago, {DURATION_HELP}."
    ),
]


def _filter_options(
    group: GroupOption = None,
    reason: ReasonOption = None,
    job_type: TypeOption = None,
    lane: LaneOption = None,
    error_type: ErrorTypeOption = None,
    operation: OperationOption = None,
    older_than: OlderOption = None,
    younger_than: YoungerOption = None,
) -> Any:
    from switchyard.services.engine.dead.letters import LetterFilter

    known_reason(reason)
    return LetterFilter(
        job_type=job_type,
        lane=known_lane(lane),
        reason=reason,
        error_type=error_type,
        group=group_id(group),
        operation=operation,
        older_than=optional_duration(older_than),
        younger_than=optional_duration(younger_than),
    )


filtered = with_options(_filter_options, "which")
"""A command with the filters behind its own options; it gets them as `which`."""


async def full_letter_id(ledger: Ledger, given: str) -> str:
    """The id of the dead letter that is meant; see `full_id`. Raises AmbiguousId."""
    from switchyard.services.engine.ledger.short_ids import Among

    return await ledger.short_ids.full_id(Among.DEAD_LETTERS, given)


def chosen(which: LetterFilter, ids: list[str] | None, *, everything: bool) -> LetterFilter:
    """The filter with the ids. Raises WrongUsage where nothing says which letters are meant."""
    from dataclasses import replace

    which = replace(which, ids=frozenset(ids or ()))
    if which.is_empty and not everything:
        raise WrongUsage("which ones? name ids, or a filter such as --group, or --all")
    if everything and not which.is_empty:
        raise WrongUsage("--all is for all of them: leave it out, or the ids and filters")
    return which


def known_reason(reason: str | None) -> None:
    """Raises WrongUsage for a reason that there is not."""
    from switchyard.broker.dead.certificate import Reason

    if reason is not None and reason not in list(Reason):
        raise WrongUsage(f"--reason {reason!r}: choose one of {', '.join(Reason)}")


def group_id(text: str | None) -> str | None:
    """Raises WrongUsage for what can be no group's id."""
    if text is not None and (not text or set(text.lower()) - set("0123456789abcdef")):
        raise WrongUsage(f"--group {text!r}: an id as `jobctl dead groups` shows it")
    return text.lower() if text is not None else None
