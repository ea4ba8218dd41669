"""`jobctl index`: show, rebuild and compact the search index."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.output import JsonOption, echo, print_json, print_rows, say
from switchyard.cli.base.shared_options import TimeoutOption, seconds_to_wait

if TYPE_CHECKING:
    from switchyard.api.models.lanes import IndexView
    from switchyard.cli.engine.jobs.publish_one import PublishOptions

app = typer.Typer(
    no_args_is_help=True, help="The search index: show, rebuild, compact, abandon a rebuild."
)

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it has finished.")]


class OfflineName(StrEnum):
    """Embedders that need no server; a test compares them with those of the job."""

    WORDLLAMA = "wordllama"
    HASHED = "hashed"
    MINILM = "minilm"


@app.command()
def show(as_json: JsonOption = False) -> None:
    """Show the location of the index, its embedder, and the progress of a rebuild."""
    quiet_logs()
    index_view = run(_read_index())
    if as_json:
        print_json(index_view)
        return
    print_rows([("where", index_view.where), ("embedder of the settings", index_view.wanted)])
    for each in index_view.generations:
        chunks = "" if each.chunks is None else f", {pluralize(each.chunks, 'chunk')}"
        echo(f"{each.role}: {each.embedder}{chunks} ({each.table})")
    active = index_view.generations[0].embedder
    building = [each for each in index_view.generations if each.role == "building"]
    if active != index_view.wanted and not building:
        say(f"It keeps {active} until `jobctl index rebuild`.")


@app.command()
def rebuild(
    offline: Annotated[
        OfflineName | None,
        typer.Option(
            help="Use this built-in embedder, which needs no server. Default: the embedder "
            "of the settings."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Use this model of the server at JOBS_EMBED_BASE_URL.")
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(min=8, max=4096, help="Dimensions of the vectors. Default: the embedder's."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rebuild even if the index already uses this embedder.")
    ] = False,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build a new search index beside the current one, then swap them.

    Use it after a change of the embedder. Searches and ingestion continue in the meantime. Needs a
    running `jobctl worker reindex`.
    """
    payload: dict[str, Any] = {
        "offline": None if offline is None else offline.value,
        "model": model,
        "dimensions": dimensions,
        "force": force or None,
    }
    _publish(
        "maintenance.rebuild_index",
        {name: value for name, value in payload.items() if value is not None},
        wait=wait,
        timeout=timeout,
        as_json=as_json,
    )


@app.command()
def compact(
    wait: WaitOption = False, timeout: TimeoutOption = None, as_json: JsonOption = False
) -> None:
    """Merge fragments of the index, index new rows and remove replaced ones.

    Searches and ingestion continue in the meantime. Needs a running `jobctl worker reindex`.
    """
    _publish("maintenance.compact_storage", {}, wait=wait, timeout=timeout, as_json=as_json)


@app.command()
def abandon() -> None:
    """Abandon a rebuild. The current index is not changed."""
    quiet_logs()
    abandoned = run(_abandon())
    if abandoned is None:
        say("Nothing is being built.")
    else:
        echo(f"The rebuild for {abandoned} is abandoned.")


async def _read_index() -> IndexView:
    from switchyard.api.views.pipeline import view_index
    from switchyard.services.pipeline.index.open_index import generation_reports, open_index

    async with open_index(load_settings()) as index:
        return view_index(index, await generation_reports(index))


async def _abandon() -> str | None:
    from switchyard.services.pipeline.index.index_rebuild import abandon_rebuild
    from switchyard.services.pipeline.index.open_index import open_index

    settings = load_settings()
    async with (
        open_ledger(settings) as ledger,
        open_index(settings, clock=ledger.clock.time) as index,
    ):
        building = await abandon_rebuild(index)
    return None if building is None else building.embedder


def _publish(
    routing_key: str, payload: dict[str, Any], *, wait: bool, timeout: str | None, as_json: bool
) -> None:
    from switchyard.cli.engine.jobs.publish_one import PublishOptions, WaitMode

    quiet_logs()
    options = PublishOptions(
        routing_key=routing_key,
        priority=None,
        max_attempts=None,
        delay=0,
        expires_in=None,
        key=None,
        wait=WaitMode.PIPELINE if wait else None,
        timeout=seconds_to_wait(timeout, waits=wait),
        as_json=as_json,
    )
    run(_publish_job(options, payload))


async def _publish_job(options: PublishOptions, payload: dict[str, Any]) -> None:
    from switchyard.cli.engine.jobs.publish_one import job_publisher, publish_one

    settings = load_settings()
    require_broker(settings)
    async with job_publisher(settings, load_registry(settings)) as (publisher, ledger):
        await publish_one(options, publisher, ledger, payload)
