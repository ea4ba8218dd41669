"""Start a backfill: check it, show the first jobs, record it, watch it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    current_user,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import FAILED, CommandFailed
from switchyard.cli.base.output import echo, inline_json, print_json, say
from switchyard.services.common.file_errors import describe_read_error

if TYPE_CHECKING:
    from switchyard.cli.engine.backfill.options import CommonOptions
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.backfill.costs import CostEstimate
    from switchyard.services.engine.backfill.starting import Backfills, Preview
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation

READ_BYTES = 1024 * 1024


def start(name: str, options: dict[str, Any], common: CommonOptions) -> None:
    """Start a backfill from the source `name`; exit code 1 when it is watched and ends badly."""
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    if not run(_start(settings, name, options, common)):
        raise typer.Exit(FAILED)


async def _start(
    settings: Settings, name: str, options: dict[str, Any], common: CommonOptions
) -> bool:
    from switchyard.broker.lanes import queue_name
    from switchyard.cli.base.common import require_queues
    from switchyard.services.engine.backfill.spec import Plan, parse_spec
    from switchyard.services.engine.backfill.starting import Backfills
    from switchyard.services.engine.bulk.control import check_limits
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.records.errors import LedgerUnavailable

    registry = load_registry(settings, common.include)
    async with open_ledger(settings, registry) as ledger:
        await require_same_system(settings, ledger)
        backfills = Backfills.from_settings(settings, registry, ledger, common.include)
        given_options = {key: value for key, value in options.items() if value is not None}
        # Errors are reported before a large file is copied.
        empty_spec = parse_spec({"source": name, "options": {}, **common.spec})
        ids = await ledger.system.job_ids()
        plan = Plan.from_spec("", empty_spec, backfills.sources.get(name), registry, ids)
        limits = {"rate": common.rate, "max_open": common.max_open, "budget": common.budget}
        check_limits(limits)
        if name == "file":
            given_options = await _store_file(backfills, given_options)
        keeps_input = False
        try:
            spec = parse_spec({"source": name, "options": given_options, **common.spec})
            if common.dry_run:
                _print_preview(registry, await backfills.preview(spec), as_json=common.as_json)
                return True
            queue = queue_name(spec.lane, plan.job_type.worker)
            await require_queues(settings.require_amqp_url(), [queue])
            operation = await backfills.start(
                spec,
                created_by=current_user(),
                reason=common.why,
                rate=common.rate,
                max_open=common.max_open,
                budget=common.budget,
            )
            keeps_input = True
        except LedgerUnavailable:
            keeps_input = True  # the backfill may have been recorded: then it reads the file
            raise
        finally:
            if name == "file" and not keeps_input:
                await backfills.storage.delete_async(given_options["key"])
        return await _report_start(ledger, registry, operation, common)


async def _report_start(
    ledger: Ledger, registry: Registry, operation: BulkOperation, common: CommonOptions
) -> bool:
    """Print what was started, and watch it if that was asked for. Return False if a watched one
    ends badly."""
    from switchyard.cli.engine.backfill.view import BackfillDisplay
    from switchyard.cli.engine.bulk.commands import follow
    from switchyard.services.engine.backfill.progress import progress_of
    from switchyard.services.engine.bulk.shown import shown_operation

    operation = shown_operation(registry, operation)
    progress = await progress_of(ledger, operation)
    if common.as_json and not common.watch:
        print_json(BackfillDisplay().to_model(progress))
        return True
    items = "" if progress.total is None else f", {pluralize(progress.total, 'item')}"
    say(f"{operation.title}{items}")
    if common.watch:
        say(operation.id)
        return await follow(
            BackfillDisplay(), ledger, registry, operation.id, as_json=common.as_json
        )
    echo(operation.id)
    say(f"Follow it with `jobctl backfill watch {operation.id}`")
    return True


async def _store_file(backfills: Backfills, options: dict[str, Any]) -> dict[str, Any]:
    """Copy the file that the options name into the storage; return the options of the copy."""
    from switchyard.services.common.files.charsets import charset_named
    from switchyard.services.common.files.errors import FileTooLarge
    from switchyard.services.engine.backfill.files import format_of, store_input
    from switchyard.services.engine.backfill.formats import FileFormat

    path = options["path"]
    if "format" in options:
        file_format = FileFormat(options["format"])
    else:
        file_format = FileFormat.JSONL if path == "-" else format_of(path)
    try:
        key = await store_input(
            backfills.storage,
            _read_parts(path),
            file_format,
            lambda: charset_named(options.get("charset")),
        )
    except OSError as error:
        raise CommandFailed(describe_read_error(path, error)) from error
    except FileTooLarge as error:
        raise CommandFailed(f"{path!r} is too large for a backfill: it has {error}") from error
    name = "standard input" if path == "-" else Path(path).name
    return {"key": key, "format": file_format.value, "name": name}


async def _read_parts(path: str) -> AsyncIterator[bytes]:
    import asyncio

    with sys.stdin.buffer if path == "-" else Path(path).open("rb") as stream:  # noqa: ASYNC230
        while part := await asyncio.to_thread(stream.read, READ_BYTES):
            yield part


def _print_preview(registry: Registry, preview: Preview, *, as_json: bool) -> None:
    if as_json:
        from switchyard.api.views.backfills import view_preview

        print_json(view_preview(registry, preview))
        return
    items = (
        "an unknown number of items" if preview.total is None else pluralize(preview.total, "item")
    )
    say(f"{preview.title}: {items}. The first jobs would be:")
    for job in preview.jobs:
        shown = registry.hide_secrets(job.message.job_type, job.message.payload)
        echo(f"{job.routing_key}  {inline_json(shown)}")
    for why in preview.unusable:
        say(f"skipped: {why}")
    if preview.cost is not None:
        say(_cost_text(preview.cost))


def _cost_text(cost: CostEstimate) -> str:
    from switchyard.services.common.prices import format_money

    money = "an unknown cost (the model has no price in JOBS_LLM_PRICES)"
    if cost.cost is not None:
        money = format_money(cost.cost, cost.currency)
    subject = "each job" if cost.jobs is None else "the whole backfill"
    return (
        f"At most, {subject} takes {cost.input_tokens:,} input tokens, {cost.output_tokens:,} "
        f"output tokens and {money}: {cost.assumption}."
    )
