"""Options that choose dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.durations import DURATION_HELP, parse_optional_duration
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import LaneOption, check_lane, with_options

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
    require_reason(reason)
    return checked_filter(
        job_type=job_type,
        lane=check_lane(lane),
        reason=reason,
        error_type=error_type,
        group=None if group is None else group.lower(),
        operation=operation,
        older_than=parse_optional_duration(older_than),
        younger_than=parse_optional_duration(younger_than),
    )


with_letter_filter = with_options(_filter_options, "letter_filter")
"""Give a command the options of the filter, behind its own; it gets them as
`letter_filter`."""


async def full_letter_id(ledger: Ledger, id_or_start: str) -> str:
    """Return the id of the dead letter with that id or start of an id; see `full_id`. Raises
    AmbiguousId."""
    from switchyard.services.engine.ledger.short_ids import IdTable

    return await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, id_or_start)


def checked_filter(**values: Any) -> LetterFilter:
    """Make a filter of these values. Raises WrongUsage for values that no letter can have."""
    from pydantic import ValidationError

    from switchyard.broker.message import describe
    from switchyard.services.engine.dead.letters import LetterFilter

    try:
        return LetterFilter(**values)
    except ValidationError as error:
        raise WrongUsage(describe(error, _name_option)) from error


def _name_option(place: Sequence[str | int]) -> list[str]:
    name = str(place[0])
    others = {"ids": "ID", "job_type": "--type"}
    return [others.get(name, f"--{name.replace('_', '-')}")]


def with_ids(
    letter_filter: LetterFilter, ids: list[str] | None, *, everything: bool
) -> LetterFilter:
    """Add the ids to the filter. Raises WrongUsage where nothing says which letters are meant."""
    letter_filter = checked_filter(**letter_filter.to_json() | {"ids": frozenset(ids or ())})
    if letter_filter.is_empty and not everything:
        raise WrongUsage("which ones? name ids, or a filter such as --group, or --all")
    if everything and not letter_filter.is_empty:
        raise WrongUsage("--all is for all of them: leave it out, or the ids and filters")
    return letter_filter


def require_reason(reason: str | None) -> None:
    """Raise WrongUsage for an unknown reason."""
    from switchyard.broker.dead.dead_letter_headers import Reason

    if reason is not None and reason not in list(Reason):
        raise WrongUsage(f"--reason {reason!r}: choose one of {', '.join(Reason)}")
