"""`jobctl documents references` and `bibliography`: what a document, or a file, cites."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.durations import parse_optional_duration
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    table,
)
from switchyard.cli.base.shared_options import (
    DocumentIdArgument,
    FileArgument,
    TimeoutOption,
    refuse_document_id,
)


class BibliographyFormat(StrEnum):
    """Formats of references beside the table and JSON."""

    BIBTEX = "bibtex"
    CSL = "csl"
    TEI = "tei"


def references(
    document_id: DocumentIdArgument,
    text_format: Annotated[
        BibliographyFormat | None,
        typer.Option("--format", help="Print the references as BibTeX, CSL-JSON or TEI."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the references of a document, after a job `process_references` has run for it."""
    if text_format is not None and as_json:
        raise WrongUsage("--format and --json are two formats: give one of them")
    with api_client() as client:
        if text_format is not None:
            echo(client.bibliography(document_id, text_format.value).removesuffix("\n"))
            return
        result = client.document_references(document_id)
    if as_json:
        print_json(result)
        return
    _print_references(result)


def bibliography(
    file: FileArgument,
    text_format: Annotated[
        BibliographyFormat | None,
        typer.Option("--format", help="Print the references as BibTeX, CSL-JSON or TEI."),
    ] = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the references of a file, without storing it as a document."""
    refuse_document_id(file, "jobctl documents references {}")
    if text_format is not None and as_json:
        raise WrongUsage("--format and --json are two formats: give one of them")
    with api_client() as client:
        submission = client.process_references(file)
        if submission.result is None:
            client.wait(submission.job_id, timeout=parse_optional_duration(timeout))
        if text_format is not None:
            echo(client.job_bibliography(submission.job_id, text_format.value).removesuffix("\n"))
            return
        result = submission.result or client.job_references(submission.job_id)
    if as_json:
        print_json(result)
    else:
        _print_references(result)


def _print_references(result: dict[str, Any]) -> None:
    rows = table(
        "LABEL",
        "AUTHORS",
        "YEAR",
        "TITLE",
        "IN",
        flexible=("AUTHORS", "TITLE", "IN"),
        right=("YEAR",),
    )
    for reference in result["references"]:
        authors = [person["family"] for person in reference.get("authors", ())]
        first_authors = ", ".join(authors[:3]) + (" …" if len(authors) > 3 else "")
        add_row(
            rows,
            cell(reference.get("label", "")),
            cell(first_authors),
            str(reference.get("year", "")),
            cell(reference.get("title") or reference["text"]),
            cell(reference.get("container", "")),
        )
    console().print(rows)
    say(
        f"{pluralize(len(result['references']), 'reference')}, "
        f"cited at {pluralize(len(result['citations']), 'place')}"
    )
