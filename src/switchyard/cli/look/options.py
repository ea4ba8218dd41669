"""Arguments and options that the commands on documents share."""

from __future__ import annotations

from typing import Annotated

import typer

from switchyard.cli.base.durations import DURATION_HELP

DocumentIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The document's id.")]
TimeoutOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help=f"Wait no longer than this, {DURATION_HELP}."),
]
