"""`jobctl backfill start SOURCE`: a command for each source."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from switchyard.cli.backfill.options import CommonOptions, common_options
from switchyard.cli.backfill.starting import start
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import with_options

app = typer.Typer(
    no_args_is_help=True,
    help="Start a backfill from a source: arxiv, github, huggingface, file, documents, or one of "
    "your own. A running `jobctl scheduler` publishes it.",
)


class FormatName(StrEnum):
    """The formats, for the command line; held against FileFormat by a test."""

    JSONL = "jsonl"
    CSV = "csv"
    LINES = "lines"


def source_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command of `start`, with the options of `common_options` behind its own."""
    return app.command()(with_options(common_options, "common")(command))


@source_command
def arxiv(
    query: Annotated[
        str, typer.Option(help="In arXiv's language, such as `cat:cs.DB AND ti:index`.")
    ] = "",
    first_day: Annotated[
        datetime | None,
        typer.Option("--from", formats=["%Y-%m-%d"], help="First day of submission."),
    ] = None,
    last_day: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day of submission.")
    ] = None,
    full_text: Annotated[
        bool, typer.Option("--full-text", help="Take in the PDFs; else title and abstract.")
    ] = False,
    *,
    common: CommonOptions,
) -> None:
    """Papers of arXiv, by the date of their first submission."""
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
        str | None, typer.Option(metavar="NAME", help="An organisation: all its repositories.")
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(help="In GitHub's language, such as `topic:ocr stars:>100`; 1,000 at most."),
    ] = None,
    repositories: Annotated[
        list[str] | None,
        typer.Option("--repository", metavar="OWNER/NAME", help="One of a list; repeatable."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Repositories of GitHub: of an organisation, a search, or a list."""
    if sum(bool(each) for each in (org, query, repositories)) != 1:
        raise WrongUsage("name one of --org, --query and --repository")
    start("github", {"org": org, "query": query, "repositories": repositories}, common)


class HubKind(StrEnum):
    """What the hub has."""

    MODEL = "model"
    DATASET = "dataset"


@source_command
def huggingface(
    search: Annotated[str | None, typer.Option(help="Words in the names.")] = None,
    author: Annotated[
        str | None, typer.Option(metavar="NAME", help="A user or an organisation of the hub.")
    ] = None,
    kind: Annotated[HubKind, typer.Option(help="Models or data sets.")] = HubKind.MODEL,
    *,
    common: CommonOptions,
) -> None:
    """Models or data sets of the Hugging Face hub: of a search, or of an author."""
    if not search and not author:
        raise WrongUsage("name --search or --author: the whole hub has millions of models")
    start("huggingface", {"search": search, "author": author, "kind": kind.value}, common)


@source_command
def file(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="A .jsonl or .csv file, a list; - for stdin.")
    ],
    file_format: Annotated[
        FormatName | None,
        typer.Option("--format", help="By the name where not given; jsonl for stdin."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """A line of JSON, a row of CSV, or a line of text for each job.

    The file is copied into the storage first. In the payload's template, {name} is a field of
    the object or a column; {item} is a line, or a value that is no object.
    """
    if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
        raise WrongUsage(f"no such file: {path}")
    start("file", {"path": path, "format": file_format and file_format.value}, common)


@source_command
def documents(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="state, source (its beginning), class, media_type, since, until; repeatable.",
        ),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Documents that are stored already, for reindexing and new stages.

    Without --payload the jobs get {"document_id": …, "force": true}.
    """
    if common.spec["payload"] is None:
        common.spec["payload"] = {"document_id": "{document_id}", "force": True}
    start("documents", _pairs(filters, "--filter"), common)


@source_command
def source(
    name: Annotated[str, typer.Argument(help="The source's name, from JOBS_MODULES.")],
    options: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="The source's; repeatable."),
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """A source of your own: a class in one of your modules (docs/backfills.md)."""
    start(name, _pairs(options, "--option"), common)


def _pairs(texts: list[str] | None, option: str) -> dict[str, Any]:
    """`NAME=VALUE` options; a value is text, or JSON where that has structure. Numbers in text are
    the source's to read: `123` may be a name."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, raw = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"{option} {text!r}: write NAME=VALUE")
        try:
            value = json.loads(raw)
        except ValueError:
            value = raw
        found[name] = raw if isinstance(value, int | float) else value
    return found
