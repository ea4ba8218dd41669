"""`jobctl backfill start SOURCE`: check, show the first jobs, record, and watch."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import FAILED, CommandFailed, WrongUsage
from switchyard.cli.base.output import JsonOption, echo, inline_json, print_json, say
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.base.shared_options import with_options
from switchyard.cli.base.who import user
from switchyard.cli.bulk.rates import RateOption, WhyOption, optional_rate

if TYPE_CHECKING:
    from switchyard.services.backfill.starting import Backfills, Preview
    from switchyard.services.ledger import Ledger
    from switchyard.services.records import BulkOperation
    from switchyard.services.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    help="Start a backfill from a source: arxiv, file, documents, or one of your own. A running "
    "`jobctl scheduler` publishes it.",
)

READ_BYTES = 1024 * 1024


class FormatName(StrEnum):
    """The formats, for the command line; held against FileFormat by a test."""

    JSONL = "jsonl"
    CSV = "csv"
    LINES = "lines"


TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="JOB_TYPE", help="What is to be done with each item."),
]
LaneOption = Annotated[str, typer.Option(help="The lane of its jobs.")]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE",
        help="Template of the payloads: {field} becomes the item's value. The item itself where "
        "not given.",
    ),
]
PriorityOption = Annotated[int | None, typer.Option(min=0, max=10, help="Within the lane.")]
AttemptsOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Tries of each job.")]
OpenOption = Annotated[
    int | None, typer.Option("--max-open", min=1, help="Unfinished jobs of it at most.")
]
LowOption = Annotated[
    int | None,
    typer.Option(min=0, help="Jobs in a queue at which it publishes again; half of --high."),
]
HighOption = Annotated[
    int | None,
    typer.Option(min=1, help="Jobs in a queue at which it waits; half of the queue's limit."),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        help="Publish nothing after this time; local without Z or +01:00 behind it.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show the number of items and the first jobs.")
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow it; exit code 1 when not every item was done.")
]


@dataclass(frozen=True, slots=True)
class _Common:
    """What all sources are asked: the options of `_common`, as they were given."""

    spec: dict[str, Any]
    rate: float | None
    max_open: int | None
    why: str | None
    dry_run: bool
    watch: bool
    include: list[str] | None
    as_json: bool


def _common(
    job_type: TypeOption = None,
    lane: LaneOption = "backfill",
    payload: PayloadOption = None,
    priority: PriorityOption = None,
    max_attempts: AttemptsOption = None,
    rate: RateOption = None,
    max_open: OpenOption = None,
    low: LowOption = None,
    high: HighOption = None,
    until: UntilOption = None,
    why: WhyOption = None,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> _Common:
    return _Common(
        spec={
            "job_type": job_type,
            "lane": lane,
            "payload": None if payload is None else read_argument(payload),
            "priority": priority,
            "max_attempts": max_attempts,
            "low": low,
            "high": high,
            "until": None if until is None else until.astimezone().isoformat(),
            "remote": False,
        },
        rate=optional_rate(rate),
        max_open=max_open,
        why=why,
        dry_run=dry_run,
        watch=watch,
        include=include,
        as_json=as_json,
    )


def source_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command of `start`, with the options of `_common` behind its own."""
    return app.command()(with_options(_common, "common")(command))


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
    common: _Common,
) -> None:
    """Papers of arXiv, by the date of their first submission."""
    if not query and first_day is None and not common.dry_run:
        raise WrongUsage("name --query or --from: all of arXiv has over 2,000,000 papers")
    _start(
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
def file(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="A .jsonl or .csv file, a list; - for stdin.")
    ],
    file_format: Annotated[
        FormatName | None,
        typer.Option("--format", help="By the name where not given; jsonl for stdin."),
    ] = None,
    *,
    common: _Common,
) -> None:
    """A line of JSON, a row of CSV, or a line of text for each job.

    The file is copied into the storage first. In the payload's template, {name} is a field of
    the object or a column; {item} is a line, or a value that is no object.
    """
    if path != "-" and (not Path(path).exists() or Path(path).is_dir()):
        raise WrongUsage(f"no such file: {path}")
    _start("file", {"path": path, "format": file_format and file_format.value}, common)


@source_command
def documents(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="NAME=VALUE",
            help="state, source (its beginning), media_type, since or until; repeatable.",
        ),
    ] = None,
    *,
    common: _Common,
) -> None:
    """Documents that are stored already, for reindexing and new stages.

    Without --payload the jobs get {"document_id": …, "force": true}.
    """
    if common.spec["payload"] is None:
        common.spec["payload"] = {"document_id": "{document_id}", "force": True}
    _start("documents", _pairs(filters, "--filter"), common)


@source_command
def source(
    name: Annotated[str, typer.Argument(help="The source's name, from JOBS_MODULES.")],
    options: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="The source's; repeatable."),
    ] = None,
    *,
    common: _Common,
) -> None:
    """A source of your own: a class in one of your modules (docs/backfills.md)."""
    _start(name, _pairs(options, "--option"), common)


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


def _start(name: str, options: dict[str, Any], common: _Common) -> None:
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    if not run(_run(settings, name, options, common)):
        raise typer.Exit(FAILED)


async def _run(settings: Settings, name: str, options: dict[str, Any], common: _Common) -> bool:
    from switchyard.broker.lanes import queue_name
    from switchyard.cli.base.queues import require_queues
    from switchyard.services.backfill.spec import Plan, parse_spec
    from switchyard.services.backfill.starting import Backfills
    from switchyard.services.bulk.control import check_limits
    from switchyard.services.identity.broker import require_same_system
    from switchyard.services.records import LedgerUnavailable

    async with open_ledger(settings) as ledger:
        await require_same_system(settings, ledger)
        registry = load_registry(settings, common.include)
        backfills = Backfills.of(settings, registry, ledger, common.include)
        given = {key: value for key, value in options.items() if value is not None}
        # What is wrong is said before a large file is copied.
        wanted = parse_spec({"source": name, "options": {}, **common.spec})
        plan = Plan.of("", wanted, backfills.sources.get(name), registry)
        check_limits({"rate": common.rate, "max_open": common.max_open})
        if name == "file":
            given = await _store(backfills, given)
        keep = False
        try:
            spec = parse_spec({"source": name, "options": given, **common.spec})
            if common.dry_run:
                _print_preview(await backfills.preview(spec), as_json=common.as_json)
                return True
            queue = queue_name(spec.lane, plan.job_type.worker)
            await require_queues(settings.require_amqp_url(), [queue])
            operation = await backfills.start(
                spec,
                created_by=user(),
                reason=common.why,
                rate=common.rate,
                max_open=common.max_open,
            )
            keep = True
        except LedgerUnavailable:
            keep = True  # it may have been recorded, and reads the file then
            raise
        finally:
            if name == "file" and not keep:
                await backfills.storage.delete_async(given["key"])
        return await _tell(ledger, operation, common)


async def _tell(ledger: Ledger, operation: BulkOperation, common: _Common) -> bool:
    """Say what was started, and follow it where that is wanted; whether all is well."""
    from switchyard.cli.backfill.view import BackfillDisplay, public
    from switchyard.cli.bulk.commands import follow
    from switchyard.services.backfill.progress import progress_of

    progress = await progress_of(ledger, operation)
    if common.as_json and not common.watch:
        print_json(public(progress))
        return True
    items = "" if progress.total is None else f", {progress.total:,} items"
    say(f"{operation.title}{items}")
    if common.watch:
        say(operation.id)
        return await follow(BackfillDisplay(), ledger, operation.id, as_json=common.as_json)
    echo(operation.id)
    say(f"Follow it with `jobctl backfill watch {operation.id}`")
    return True


async def _store(backfills: Backfills, given: dict[str, Any]) -> dict[str, Any]:
    from switchyard.services.backfill.files import format_of, store_input
    from switchyard.services.backfill.formats import FileFormat
    from switchyard.services.files.storage import FileTooLarge

    path = given["path"]
    if "format" in given:
        file_format = FileFormat(given["format"])
    else:
        file_format = FileFormat.JSONL if path == "-" else format_of(path)
    try:
        key = await store_input(backfills.storage, _parts(path), file_format)
    except (OSError, FileTooLarge) as error:
        raise CommandFailed(f"can't read {path}: {getattr(error, 'strerror', error)}") from error
    name = "standard input" if path == "-" else Path(path).name
    return {"key": key, "format": file_format.value, "name": name}


async def _parts(path: str) -> AsyncIterator[bytes]:
    import asyncio

    with sys.stdin.buffer if path == "-" else Path(path).open("rb") as opened:  # noqa: ASYNC230
        while part := await asyncio.to_thread(opened.read, READ_BYTES):
            yield part


def _print_preview(preview: Preview, *, as_json: bool) -> None:
    jobs = [
        {
            "routing_key": job.routing_key,
            "priority": job.message.priority,
            "payload": job.message.payload,
        }
        for job in preview.jobs
    ]
    if as_json:
        print_json(
            {
                "title": preview.title,
                "total": preview.total,
                "jobs": jobs,
                "unusable": list(preview.unusable),
            }
        )
        return
    count = "an unknown number of" if preview.total is None else f"{preview.total:,}"
    say(f"{preview.title}: {count} items. The first jobs would be:")
    for job in jobs:
        echo(f"{job['routing_key']}  {inline_json(job['payload'])}")
    for why in preview.unusable:
        say(f"skipped: {why}")
