"""`jobctl search`: places in documents that answer a query, over the HTTP API."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.output import (
    JsonOption,
    cell,
    console,
    page_ranges,
    print_json,
    say,
)
from switchyard.cli.pipeline.classes import ClassOption, unknown_class_hint

FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]
"""Formats of times, which are in UTC."""


class ModeName(StrEnum):
    """How to search; a test compares it with `services.pipeline.index.search_modes.SearchMode`."""

    HYBRID = "hybrid"
    VECTOR = "vector"
    KEYWORD = "keyword"


def search(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Words or a question to search for.")
    ],
    mode: Annotated[
        ModeName,
        typer.Option(
            help="vector (similar meaning), keyword (contains the words), or hybrid (both)."
        ),
    ] = ModeName.HYBRID,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of passages.")] = 10,
    per_document: Annotated[
        int | None,
        typer.Option(
            min=1, max=100, help="Maximum number of passages per document. Default: no limit."
        ),
    ] = None,
    document: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only in this document; repeatable.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only in documents from this source.")] = None,
    classes: ClassOption = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=FORMATS,
            help="Only documents ingested at or after this time, in UTC: 2026-01-31 or "
            "2026-01-31T12:00:00.",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=FORMATS, help="Only documents ingested before this time, in UTC."),
    ] = None,
    cites: Annotated[
        str | None,
        typer.Option(
            metavar="WORK", help="Only documents that cite this work: doi:…, or a document id."
        ),
    ] = None,
    cited_by: Annotated[
        str | None, typer.Option(metavar="WORK", help="Only documents that this work cites.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search the indexed documents, best passages first.

    Examples:

    ```
    jobctl search 'why the tide rises'
    jobctl search tides --mode keyword --since 2026-01-01 --limit 20
    ```
    """
    with api_client(retries=0) as client:  # somebody waits: say at once what is away
        answer = client.search(
            query,
            mode=mode.value,
            limit=limit,
            per_document=per_document,
            document_ids=document or None,
            source=source,
            classes=classes,
            since=since and since.replace(tzinfo=UTC),
            until=until and until.replace(tzinfo=UTC),
            cites=cites,
            cited_by=cited_by,
        )
        hint = "" if answer.hits or as_json else unknown_class_hint(client, classes)
    if as_json:
        print_json(answer.hits)
        return
    if not answer.hits:
        say(f"Nothing found.{hint}")
        return
    terminal = console()
    for hit in answer.hits:
        title = cell(hit.title)
        hit_line = f"{cell(hit.document_id)}  {hit.score:.2f}"
        terminal.print(f"[bold]{title}[/], page {hit.page}  [dim]{hit_line}[/]")
        terminal.print(f"  {cell(hit.snippet)}")
        if hit.unreadable_pages:
            terminal.print(
                f"  [dim]not searched: unreadable {page_ranges(hit.unreadable_pages)}[/]"
            )
