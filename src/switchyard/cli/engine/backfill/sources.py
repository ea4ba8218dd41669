"""`jobctl backfill start SOURCE`: a command for each source."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import with_options
from switchyard.cli.engine.backfill.options import CommonOptions, common_options
from switchyard.cli.engine.backfill.starting import start
from switchyard.services.common.file_errors import describe_read_error

app = typer.Typer(
    no_args_is_help=True,
    help="Start a backfill from a source: arxiv, github, huggingface, file, "
    "documents, or your own. A running `jobctl scheduler` publishes its jobs.",
)


class FormatName(StrEnum):
    """The formats, for the command line; a test compares them with FileFormat."""

    JSONL = "jsonl"
    CSV = "csv"
    LINES = "lines"


def source_command(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of `start`: its own options first, then those of `common_options`."""
    return app.command()(with_options(common_options, "common")(command))


@source_command
def arxiv(
    query: Annotated[
        str,
        typer.Option(
            help="Query in arXiv's syntax, for example `cat:cs.DB AND ti:index`. Default: "
            "all papers."
        ),
    ] = "",
    first_day: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            formats=["%Y-%m-%d"],
            help="First day of submission, YYYY-MM-DD, inclusive. Default: no limit.",
        ),
    ] = None,
    last_day: Annotated[
        datetime | None,
        typer.Option(
            "--to",
            formats=["%Y-%m-%d"],
            help="Last day of submission, YYYY-MM-DD, inclusive. Default: today.",
        ),
    ] = None,
    full_text: Annotated[
        bool,
        typer.Option(
            "--full-text",
            help="Ingest the full PDF of each paper. Default: only title and abstract.",
        ),
    ] = False,
    *,
    common: CommonOptions,
) -> None:
    r"""Publish a job for each paper of arXiv, by date of first submission, oldest first.

    Example:

    ```
    jobctl backfill start arxiv --query 'cat:cs.DB' \
        --from 2024-01-01 --to 2024-12-31 --rate 50/s --dry-run
    ```
    """
    if not query and first_day is None and not common.dry_run:
        raise WrongUsage("name --query or --from: all of arXiv has over 2,000,000 papers")
    start(
        "arxiv",
        {
            "query": query,
            "from": first_day and first_day.date().isoformat(),
            "to": last_day and last_day.date().isoformat(),
            "full_text": full_text,
        },
        common,
    )


@source_command
def github(
    org: Annotated[
        str | None, typer.Option(metavar="NAME", help="All repositories of this organisation.")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="Search in GitHub's syntax, for example `topic:ocr stars:>100`; GitHub "
            "returns at most 1,000 results."
        ),
    ] = None,
    repositories: Annotated[
        list[str] | None,
        typer.Option("--repository", metavar="OWNER/NAME", help="This repository; repeatable."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Publish a job for each GitHub repository of an organisation, a search, or a list.

    Give --org, --query or --repository. Example:

    ```
    jobctl backfill start github --query 'topic:ocr stars:>100' --dry-run
    ```
    """
    if sum(bool(each) for each in (org, query, repositories)) != 1:
        raise WrongUsage("name one of --org, --query and --repository")
    start("github", {"org": org, "query": query, "repositories": repositories}, common)


class HubKind(StrEnum):
    """Kinds of repositories on the hub."""

    MODEL = "model"
    DATASET = "dataset"


@source_command
def huggingface(
    search: Annotated[
        str | None, typer.Option(help="Words in the name of the model or data set.")
    ] = None,
    author: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only of this user or organisation on the hub."),
    ] = None,
    kind: Annotated[HubKind, typer.Option(help="Search models or data sets.")] = HubKind.MODEL,
    *,
    common: CommonOptions,
) -> None:
    """Publish a job for each model or data set of the Hugging Face hub.

    Give --search, --author or both. Example:

    ```
    jobctl backfill start huggingface --search ocr --kind dataset --dry-run
    ```
    """
    if not search and not author:
        raise WrongUsage("name --search or --author: the whole hub has millions of models")
    start("huggingface", {"search": search, "author": author, "kind": kind.value}, common)


@source_command
def file(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A .jsonl or .csv file, or a text file with one item per line; - is "
            "standard input.",
        ),
    ],
    file_format: Annotated[
        FormatName | None,
        typer.Option(
            "--format", help="Format of the file. Default: from its name; jsonl for standard input."
        ),
    ] = None,
    charset: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL",
            help="Charset of the file, as web pages name it. Default: by its byte order mark, "
            "else UTF-8.",
        ),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    r"""Publish a job for each line of JSON, row of CSV, or line of text.

    The file is first copied into the storage. In the payload template, {name} is a field of the
    JSON object or a column of the CSV; {item} is a line of text, or a JSON value
    that is not an object.

    Example:

    ```
    jobctl backfill start file ids.jsonl --type ingest_arxiv \
        --payload '{"id": "{item}"}' --rate 10/s --watch
    ```
    """
    if path != "-":
        _require_file(Path(path))
    from switchyard.services.common.files.charsets import charset_named

    if charset is not None and charset_named(charset) is None:
        raise WrongUsage(f"no such charset: {charset}; for example windows-1252 or gb18030")
    options = {"path": path, "format": file_format and file_format.value, "charset": charset}
    start("file", options, common)


@source_command
def documents(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="Filter by state, source (prefix), class, media_type, since or until; "
            "repeatable, all must match. For example source=arxiv:",
        ),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Publish a job for each stored document, to run a stage again or a new one.

    Without --payload each job gets {"document_id": …, "force": true}.

    Example:

    ```
    jobctl backfill start documents --filter source=arxiv: --type embed_content
    ```
    """
    if common.spec["payload"] is None:
        common.spec["payload"] = {"document_id": "{document_id}", "force": True}
    start("documents", _pairs(filters, "--filter"), common)


@source_command
def source(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the source, as registered by a module of JOBS_MODULES or --include.",
        ),
    ],
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="Option of the source; the value is JSON, or else text; repeatable.",
        ),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Publish a job for each item of your own source: a class in your module (docs/backfills.md).

    Example:

    ```
    jobctl backfill start source numbers --option to=1000 --include my_jobs
    ```
    """
    start(name, _pairs(options, "--option"), common)


def _require_file(path: Path) -> None:
    """Raise WrongUsage for a path that can't be read. The file is not opened: the writer of a pipe
    would fail when its reader closes."""
    try:
        path.stat()
        if path.is_dir():
            raise IsADirectoryError
    except OSError as error:
        raise WrongUsage(describe_read_error(path, error)) from error


def _pairs(texts: list[str] | None, option: str) -> dict[str, Any]:
    """Parse `NAME=VALUE` options: a value is read as JSON, else as text. Numbers and booleans stay
    text, for the source to read: `123` may be a name."""
    values: dict[str, Any] = {}
    for text in texts or ():
        name, equals, raw = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"{option} {text!r}: write NAME=VALUE")
        try:
            value = json.loads(raw)
        except ValueError:
            value = raw
        values[name] = raw if isinstance(value, int | float) else value
    return values
