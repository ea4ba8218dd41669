"""Options for the rate of an operation and its reason, and how a rate is written."""

from __future__ import annotations

from typing import Annotated

import typer

from switchyard.cli.base.errors import WrongUsage

RateOption = Annotated[
    str | None,
    typer.Option(
        metavar="N/s",
        help="Maximum rate of publishing: 50/s, 100/m, 20/h; a bare number is per "
        "second. Default: no limit.",
    ),
]
NewRateOption = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="N/s",
        help="Maximum rate of publishing: 50/s, 100/m, 20/h; a bare number is per "
        "second. 0: no limit.",
    ),
]
WhyOption = Annotated[
    str | None, typer.Option(help="Reason, stored in the record and shown by `show`.")
]
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_rate(text: str) -> float:
    """Parse `50/s`, `100/m`, `20/h` or `50` into a number per second. Raises WrongUsage."""
    from switchyard.services.engine.records.bulk import MAX_RATE, MIN_RATE

    number, slash, unit = text.partition("/")
    seconds = None if slash and not unit else UNITS.get(unit)
    try:
        rate = float(number)
    except ValueError:
        rate = 0
    if seconds is None or not MIN_RATE <= rate / seconds <= MAX_RATE:
        raise WrongUsage(
            f"--rate {text!r}: write it as 50/s, 100/m or 20/h; at least 4/h, at most "
            f"{MAX_RATE:,}/s"
        )
    return rate / seconds


def parse_optional_rate(text: str | None) -> float | None:
    """Parse an optional rate as `parse_rate` does; None if it was not given."""
    return None if text is None else parse_rate(text)


def parse_new_rate(text: str) -> float | None:
    """Parse a rate as `parse_rate` does; None (no limit) for 0."""
    return None if text.partition("/")[0] == "0" else parse_rate(text)
