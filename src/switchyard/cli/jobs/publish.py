"""`jobctl publish`: one job, or one for each line of standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from switchyard.cli.base.common import (
    IncludeOption,
    NotifyOption,
    load_registry,
    load_settings,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import DURATION_HELP, optional_duration
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.output import JsonOption
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.jobs.publishing import Options, Wait, job_publisher, publish_one

if TYPE_CHECKING:
    from switchyard.services.jobs.registry import Registry
    from switchyard.services.settings import Settings


class PublishCommand(TyperCommand):
    """`--wait` takes no value, so that what stands behind it is never taken for one; an option's
    value may be optional only where it is written with `=`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        for place in range(own):
            if args[place] == "--wait=pipeline":
                args[place] = "--wait-pipeline"
        return super().parse_args(ctx, args)


COMMAND_CLASS = PublishCommand


def publish(
    routing_key: Annotated[
        str, typer.Argument(metavar="ROUTING_KEY", help="LANE.JOB_TYPE, as in hot.ingest_document")
    ],
    payload: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="The payload; a file with it; or standard input: one JSON object, or one per "
            "line, each a job.",
        ),
    ],
    priority: Annotated[
        int | None, typer.Option(min=0, max=10, help="Within the lane; else the lane's own.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Else the job type's, mostly 3.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Wait so long first, {DURATION_HELP}.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="TIME", help="Don't start it later than this from now.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key: the same key names the same job. Lines get KEY/1, KEY/2, …"
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait for the job's end; print its result. --wait=pipeline: for all that follows "
            "from it, too; prints how each job ended.",
        ),
    ] = False,
    wait_for_pipeline: Annotated[bool, typer.Option("--wait-pipeline", hidden=True)] = False,
    notify: NotifyOption = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --wait: fail after so long.")
    ] = None,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish jobs: checked, recorded in the ledger, and confirmed by the broker.

    Prints each job's id. Exit code 1 tells that a job was refused, or (with --wait) that it died.
    """
    waits = Wait.PIPELINE if wait_for_pipeline else Wait.JOB if wait else None
    if timeout is not None and waits is None:
        raise WrongUsage("--timeout is for --wait: give both, or neither")
    options = Options(
        routing_key=routing_key,
        priority=priority,
        max_attempts=max_attempts,
        delay=optional_duration(delay) or 0,
        expires_in=optional_duration(expires_in),
        key=key,
        wait=waits,
        timeout=optional_duration(timeout),
        as_json=as_json,
        notify=notify,
    )
    single = None if payload == "-" else read_argument(payload)
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    if notify is not None:
        from switchyard.services.publishing.preparing import check_notify_url

        check_notify_url(notify, settings)
    registry = load_registry(settings, include)
    if single is not None:
        run(_publish_one(settings, registry, options, single))
        return
    from switchyard.cli.jobs.publish_lines import publish_input

    run(publish_input(settings, registry, options))


async def _publish_one(
    settings: Settings, registry: Registry, options: Options, payload: dict[str, Any]
) -> None:
    async with job_publisher(settings, registry) as (publisher, ledger):
        await publish_one(options, publisher, ledger, payload)
