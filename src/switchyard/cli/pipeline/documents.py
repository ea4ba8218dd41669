"""`jobctl documents`: send documents, and see what was made of them, over the HTTP API."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.times import format_local
from switchyard.cli.base.api_client import advice, api_client
from switchyard.cli.base.common import NotifyOption
from switchyard.cli.base.durations import parse_optional_duration
from switchyard.cli.base.errors import FAILED, WrongUsage, one_line
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    page_ranges,
    print_json,
    print_json_line,
    print_rows,
    say,
    styled,
    table,
)
from switchyard.cli.base.shared_options import (
    DocumentIdArgument,
    FileArgument,
    TagOption,
    TimeoutOption,
    refuse_document_id,
    seconds_to_wait,
    tags_of,
)
from switchyard.cli.pipeline.classes import ClassOption, class_text, classify, unknown_class_hint
from switchyard.cli.pipeline.figures import figures
from switchyard.cli.pipeline.references import bibliography, references
from switchyard.cli.pipeline.samples import generate_documents
from switchyard.services.common.file_errors import describe_read_error

if TYPE_CHECKING:
    from switchyard.api.client import ApiError, Client
    from switchyard.api.models.documents import DocumentView

app = typer.Typer(
    no_args_is_help=True,
    help="Documents, over the HTTP API: upload, list, show, results, text, references.",
)


app.command(name="generate")(generate_documents)
app.command()(classify)
app.command()(figures)
app.command()(references)
app.command()(bibliography)


class UploadLane(StrEnum):
    """Lanes that take documents."""

    HOT = "hot"
    BACKFILL = "backfill"


@app.command()
def upload(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="PDF, image, Markdown or plain text file.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            help="Origin of the file, for example its URL. A source that is already known "
            "is not processed again. Only with a single file."
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(
            help="Title of the document. Default: taken from its text. Only with a single file."
        ),
    ] = None,
    lane: Annotated[UploadLane, typer.Option(help="Lane of the document's jobs.")] = UploadLane.HOT,
    tags: TagOption = None,
    notify: NotifyOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the pipeline has ended for all files.")
    ] = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send files through the document pipeline; prints the id of each file.

    Files whose content or source is already known are not processed again. Exit code 1: a file was
    refused or, with --wait, failed; the others are still processed.

    Example:

    ```
    jobctl documents upload *.pdf --wait --timeout 10m
    ```
    """
    from switchyard.api.client import ApiError, ApiUnavailable, Unauthorized

    if len(files) > 1 and (source is not None or title is not None):
        raise WrongUsage("--source and --title belong to one document: send one file")
    job_tags = tags_of(tags)
    seconds = seconds_to_wait(timeout, waits=wait)
    failures = 0
    sent: list[tuple[str, Path]] = []
    with api_client() as client:
        for path in files:
            try:
                document = client.upload(
                    path,
                    source=source,
                    title=title,
                    lane=lane.value,
                    tags=job_tags,
                    notify_url=notify,
                )
            except (ApiUnavailable, Unauthorized):
                raise  # the others would fare no better
            except (ApiError, OSError) as error:
                say(_refusal(path, error))
                failures += 1
                continue
            sent.append((document.document_id, path))
            if not wait:
                _print_sent(document, path, as_json)
        for document_id, path in sent if wait else ():
            failures += not _wait(client, document_id, seconds, as_json, path)
    if failures:
        raise typer.Exit(FAILED)


@app.command(name="list")
def list_documents(
    state: Annotated[
        str | None,
        typer.Option(help="Only documents in this state, for example completed or failed."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only documents from this source.")] = None,
    classes: ClassOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List documents, newest first."""
    from itertools import islice

    with api_client() as client:
        documents = list(
            islice(client.documents(state=state, source=source, classes=classes), limit + 1)
        )
        hint = "" if documents or as_json else unknown_class_hint(client, classes)
    has_more, documents = len(documents) > limit, documents[:limit]
    if as_json:
        print_json(documents)
        return
    if not documents:
        say(f"No documents.{hint}")
        return
    rows = table("ID", "STATE", "TAKEN IN", "TITLE", "SOURCE", flexible=("TITLE", "SOURCE"))
    for document in documents:
        add_row(
            rows,
            cell(document.document_id),
            styled(document.state),
            format_local(document.created_at.timestamp()),
            cell(document.title or document.filename),
            cell(document.source),
        )
    console().print(rows)
    if has_more:
        say(f"The newest {limit}; more with --limit or a filter.")


@app.command()
def show(document_id: DocumentIdArgument, as_json: JsonOption = False) -> None:
    """Show the state of a document; if it failed, also the error and the job to redrive."""
    with api_client() as client:
        _print_status(client.document(document_id), as_json)


@app.command()
def wait(
    document_id: DocumentIdArgument, timeout: TimeoutOption = None, as_json: JsonOption = False
) -> None:
    """Wait until the pipeline of a document has ended. Exit code 1: it failed, or timed out."""
    with api_client() as client:
        if not _wait(client, document_id, parse_optional_duration(timeout), as_json):
            raise typer.Exit(FAILED)


@app.command()
def result(
    document_id: DocumentIdArgument,
    text: Annotated[bool, typer.Option("--text", help="Also print the text.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the results of a document: summary, links to similar documents, counts."""
    with api_client() as client:
        document_result = client.document_result(document_id, with_text=text)
    if as_json:
        print_json(document_result)
        return
    summary = document_result.get("summary") or {}
    print_rows(
        (
            ("Title", document_result.get("title") or ""),
            ("Source", document_result.get("source") or ""),
            ("Pages", str(document_result.get("page_count") or "")),
            ("Words", str(document_result.get("word_count") or "")),
            ("Summary", summary.get("summary") or ""),
            *(("Similar", _describe_link(each)) for each in document_result.get("links") or ()),
        )
    )
    if text:
        _print_pages(document_result)


@app.command()
def page(
    document_id: DocumentIdArgument,
    number: Annotated[int, typer.Argument(metavar="PAGE", min=1, help="Page number, from 1.")],
    as_json: JsonOption = False,
) -> None:
    """Print the text of one page of a document, as Markdown."""
    with api_client() as client:
        document_page = client.document_page(document_id, number)
    if as_json:
        print_json(document_page)
    else:
        echo(document_page.text)


@app.command()
def text(
    file: FileArgument,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the text of a file, without storing it as a document."""
    refuse_document_id(file, "jobctl documents page {} 1")
    with api_client() as client:
        text_result = client.text_of(file, timeout=parse_optional_duration(timeout))
    if as_json:
        print_json(text_result)
    else:
        _print_pages(text_result)


def _wait(
    client: Client,
    document_id: str,
    timeout: float | None,
    as_json: bool,
    path: Path | None = None,
) -> bool:
    """Wait for the end of a document's pipeline, and print the document. Return False if it
    failed."""
    document = client.wait_for_document(document_id, timeout=timeout)
    if as_json:
        print_json_line(document)
    else:
        name = "" if path is None else f"  {one_line(str(path))}"
        echo(f"{document.document_id}  {document.state}{name}")
        if document.error is not None:
            say(f"{document_id} failed at {document.current_stage}: {_describe_error(document)}")
    return document.error is None


def _refusal(path: Path, error: ApiError | OSError) -> str:
    return (
        describe_read_error(path, error)
        if isinstance(error, OSError)
        else f"{path}: {advice(error)}"
    )


def _print_sent(document: DocumentView, path: Path, as_json: bool) -> None:
    if as_json:
        print_json_line(document)
        return
    echo(f"{document.document_id}  {one_line(str(path))}")
    if document.duplicate:
        say(f"{document.document_id} was known already; it is {document.state}")


def _print_status(document: DocumentView, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    print_rows(
        (
            ("Document", document.document_id),
            ("State", document.state),
            ("At", document.current_stage or ""),
            ("Done", ", ".join(document.completed_stages)),
            ("Error", _describe_error(document)),
            ("Redrive", document.error.job_id or "" if document.error else ""),
            ("Title", document.title or ""),
            ("File", document.filename or ""),
            ("Source", document.source or ""),
            *(("Class", class_text(each)) for each in document.classes),
            ("Unreadable", page_ranges(document.unreadable_pages)),
            *((f"Page {page}", reason) for page, reason in document.page_errors.items()),
            ("Job", document.job_id or ""),
            (
                "Taken in",
                format_local(document.created_at.timestamp()) if document.created_at else "",
            ),
        )
    )


def _describe_error(document: DocumentView) -> str:
    error = document.error
    if error is None:
        return ""
    return f"{error.reason}: {error.message}" if error.message else error.reason


def _describe_link(link: dict[str, Any]) -> str:
    return f"{link['document_id']}  {link['similarity']:.2f}"


def _print_pages(result: dict[str, Any]) -> None:
    for page in result.get("pages") or ():
        echo(page["text"])
