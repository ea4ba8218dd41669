"""Arguments and options that the commands on documents share."""

from __future__ import annotations

from typing import Annotated

import typer

DocumentIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the document, from `jobctl documents list`.")
]
