"""Options that change dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.payloads import parse_payload, read_argument

if TYPE_CHECKING:
    from switchyard.services.engine.dead.changes import Change

ToOption = Annotated[
    str | None,
    typer.Option(
        metavar="ROUTING_KEY", help="Send the letters to this LANE.JOB_TYPE instead of their own."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a field of the message, for example payload.x=1 or priority=9. "
        "The value is JSON, or else text; repeatable.",
    ),
]
MergeOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE",
        help="JSON merge patch (RFC 7396) for the payload; null removes a field.",
    ),
]
JqOption = Annotated[
    str | None,
    typer.Option(
        metavar="EXPRESSION", help="jq expression that computes the new payload from the old one."
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=10,
        help="New priority within the lane; a higher number runs first. Default: unchanged.",
    ),
]
AttemptsOption = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="New maximum of attempts per job. Default: unchanged."),
]


def make_change(
    to: str | None,
    assignments: list[str] | None,
    merge: str | None,
    jq: str | None,
    priority: int | None,
    max_attempts: int | None,
) -> Change:
    """Make the change that the options describe. Raises WrongUsage, InvalidRedrive."""
    from switchyard.services.engine.dead.changes import Change, parse_assignment

    return Change(
        merge=None if merge is None else _read_object(merge),
        jq=jq,
        values=dict(parse_assignment(text) for text in assignments or ()),
        priority=priority,
        max_attempts=max_attempts,
        to=to,
    )


def _read_object(text: str) -> dict[str, Any]:
    return read_argument(text) if text.startswith("@") else parse_payload(text, "--merge")
