"""`--lane`, where it chooses jobs or letters: a mistyped name is an error and not an empty list."""

from __future__ import annotations

from typing import Annotated

import typer

from switchyard.cli.base.errors import WrongUsage

LaneOption = Annotated[
    str | None, typer.Option(help="Only this lane: hot, vlm_ocr, maintenance or backfill.")
]


def known_lane(name: str | None) -> str | None:
    """The name of a lane, or None for all. Raises WrongUsage for a lane that does not exist."""
    from switchyard.broker.lanes import lane_named

    if name is not None:
        try:
            lane_named(name)
        except ValueError as error:
            raise WrongUsage(f"--lane {name!r}: {error}") from error
    return name
