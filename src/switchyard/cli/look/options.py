"""Arguments and options that the commands on documents share."""

from __future__ import annotations

from typing import Annotated

import typer

from switchyard.cli.base.durations import DURATION_HELP

DocumentIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the document, from `jobctl documents list`.")
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help=f"Stop waiting after this time, {DURATION_HELP}. Default: no limit."
    ),
]
