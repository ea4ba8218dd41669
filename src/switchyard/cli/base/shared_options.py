"""Options that several commands have, declared once; some are handed to each as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from switchyard.cli.base.durations import DURATION_HELP, parse_duration
from switchyard.cli.base.errors import WrongUsage

TimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Stop waiting after this time, {DURATION_HELP}. Default: no limit."
    ),
]


def seconds_to_wait(timeout: str | None, *, waits: bool) -> float | None:
    """Of a TimeoutOption beside a `--wait`. Raises WrongUsage for one that is no duration, or has
    nothing to wait for."""
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
        def run_it(**given: Any) -> None:
            made = shared(**{option: given.pop(option) for option in options})
            command(**given, **{name: made})

        run_it.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_it.__annotations__ = {each.name: each.annotation for each in parameters}
        return run_it

    return extend
