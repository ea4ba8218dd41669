"""Options and arguments of several commands, and the reading of their values. Some groups of
options become one argument of a command (`with_options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from switchyard.cli.base.durations import DURATION_HELP, parse_duration
from switchyard.cli.base.errors import WrongUsage

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger

MAX_LIMIT = 1_000
LimitOption = Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="Maximum number of results.")]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Stop waiting after this time, {DURATION_HELP}. Default: no limit."
    ),
]

JobIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of the job, from `jobctl jobs list` or `jobctl publish`; the first six characters "
        "or more are enough.",
    ),
]

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="PDF, Markdown or plain text file.")
]
DocumentIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Id of the document, from `jobctl documents list`; its beginning is enough.",
    ),
]


def seconds_to_wait(timeout: str | None, *, waits: bool) -> float | None:
    """Read a TimeoutOption. Raises WrongUsage if it is no duration, or was given without
    `--wait`."""
    if timeout is None:
        return None
    if not waits:
        raise WrongUsage("--timeout is for --wait: give both, or neither")
    return parse_duration(timeout)


def with_options(
    shared: Callable[..., Any], name: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `shared` behind its own. It gets what `shared` makes of them
    as its argument `name`."""
    options = inspect.signature(shared, eval_str=True).parameters

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in (*own.values(), *options.values())
            if parameter.name != name
        ]

        @wraps(command)
        def run_command(**arguments: Any) -> None:
            options_value = shared(**{option: arguments.pop(option) for option in options})
            command(**arguments, **{name: options_value})

        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = {each.name: each.annotation for each in parameters}
        return run_command

    return extend


LaneOption = Annotated[
    str | None, typer.Option(help="Only this lane: hot, vlm_ocr, maintenance or backfill.")
]


TagOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="NAME=VALUE",
        help="Tag of the job, such as team=search; repeatable. Its follow-up jobs get it, too.",
    ),
]
TagFilterOption = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", help="Only jobs with this tag; repeatable."),
]


def tags_of(pairs: list[str] | None) -> dict[str, str]:
    """Read the values of `--tag`. Raises WrongUsage."""
    from switchyard.services.engine.records.requests import parse_tag

    try:
        return dict(parse_tag(each) for each in pairs or ())
    except ValueError as wrong:
        raise WrongUsage(f"--tag: {wrong}") from wrong


def check_lane(name: str | None) -> str | None:
    """Return the name of a lane, or None for all. Raises WrongUsage for a lane that does not
    exist."""
    from switchyard.broker.lanes import lane_named

    if name is not None:
        try:
            lane_named(name)
        except ValueError as error:
            raise WrongUsage(f"--lane {name!r}: {error}") from error
    return name


async def full_job_id(ledger: Ledger, id_or_start: str) -> str:
    """Return the full id of a job from its beginning; see `full_id`. Raises AmbiguousId."""
    from switchyard.services.engine.ledger.short_ids import IdTable

    return await ledger.short_ids.full_id(IdTable.JOBS, id_or_start)


def refuse_document_id(file: Path, instead: str) -> None:
    """Raise WrongUsage for a document's id that was given as a file, naming the command that takes
    ids."""
    try:
        document_id = str(UUID(str(file)))
    except ValueError:
        return
    if not file.exists():
        raise WrongUsage(f"{file} is no file; of a document: `{instead.format(document_id)}`")
