"""`jobctl documents figures`: what a document's pictures show, and the pictures themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.errors import writing
from switchyard.cli.base.output import JsonOption, add_row, cell, console, print_json, say, table
from switchyard.cli.base.shared_options import DocumentIdArgument

_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg"}


def figures(
    document_id: DocumentIdArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also write the images into this directory; it is created if missing.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the figures of a document, after a job `describe_figures` has run for it."""
    with api_client() as client:
        figure_list = client.document_figures(document_id).figures
        if out is not None:
            with writing(out):
                out.mkdir(parents=True, exist_ok=True)
            for each in figure_list:
                name = f"figure-{each.figure}.{_SUFFIXES.get(each.media_type, 'bin')}"
                image = client.document_figure(document_id, each.figure)
                with writing(out / name):
                    (out / name).write_bytes(image)
    if as_json:
        print_json(figure_list)
        return
    if not figure_list:
        say("It has no figures.")
        return
    rows = table(
        "FIGURE", "PAGE", "KIND", "CAPTION", "DESCRIPTION", flexible=("CAPTION", "DESCRIPTION")
    )
    for each in figure_list:
        add_row(
            rows,
            str(each.figure),
            str(each.page),
            cell(each.kind),
            cell(each.caption),
            cell(f"(refused: {each.refused})" if each.refused else each.description),
        )
    console().print(rows)
