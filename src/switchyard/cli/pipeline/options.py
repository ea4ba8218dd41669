"""Arguments and options that the commands on documents share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from switchyard.cli.base.errors import WrongUsage

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="PDF, Markdown or plain text file.")
]
DocumentIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the document, from `jobctl documents list`.")
]


def refuse_id(file: Path, instead: str) -> None:
    """Where a document's id was given as a file. Raises WrongUsage, which names the command that
    takes ids."""
    try:
        document_id = str(UUID(str(file)))
    except ValueError:
        return
    if not file.exists():
        raise WrongUsage(f"{file} is no file; of a document: `{instead.format(document_id)}`")
