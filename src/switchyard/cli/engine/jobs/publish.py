"""`jobctl publish`: one job, or one for each line of standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from switchyard.cli.base.common import (
    IncludeOption,
    NotifyOption,
    PriorityOption,
    load_registry,
    load_settings,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import DURATION_HELP, parse_optional_duration
from switchyard.cli.base.output import JsonOption
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.base.shared_options import TagOption, seconds_to_wait, tags_of
from switchyard.cli.engine.jobs.publish_one import (
    PublishOptions,
    WaitMode,
    job_publisher,
    publish_one,
)
from switchyard.cli.engine.jobs.queue_binding import require_binding

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry


class PublishCommand(TyperCommand):
    """Accept `--wait=pipeline` besides `--wait`, and read it as the hidden option
    `--wait-pipeline`. `--wait` itself takes no value, so that the argument after it is never taken
    for one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options_end = args.index("--") if "--" in args else len(args)
        for index in range(options_end):
            if args[index] == "--wait=pipeline":
                args[index] = "--wait-pipeline"
        return super().parse_args(ctx, args)


COMMAND_CLASS = PublishCommand
"""The class of this module's command; `cli.base.lazy_command` finds it by this name."""


def publish(
    routing_key: Annotated[
        str,
        typer.Argument(
            metavar="ROUTING_KEY", help="LANE.JOB_TYPE, for example hot.ingest_document."
        ),
    ],
    payload: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE|-",
            help="The payload: a JSON object; @FILE reads it from a file; - reads standard "
            "input: one object, or JSON Lines with one job per line.",
        ),
    ],
    priority: PriorityOption = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Maximum number of attempts. Default: the job type's, usually 3."
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Publish after this delay, {DURATION_HELP}.")
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Dead-letter the job if it has not started within this time from now.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key: publishing again with the same key creates no second "
            "job. JSON Lines get KEY/1, KEY/2, …"
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Wait until the job has ended and print its result. --wait=pipeline also "
            "waits for its follow-up jobs and prints the state of each.",
        ),
    ] = False,
    wait_for_pipeline: Annotated[bool, typer.Option("--wait-pipeline", hidden=True)] = False,
    tags: TagOption = None,
    notify: NotifyOption = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --wait: stop waiting after this time, exit code 1. The job still runs.",
        ),
    ] = None,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish one job, or one per line of standard input, and print the job ids.

    The payload is validated, the job is recorded in the ledger, and the broker confirms it. Exit
    code 1: a job was refused or, with --wait, did not succeed.

    Examples:

    ```
    jobctl publish hot.ingest_document --payload '{"path": "/tmp/a.pdf"}' --wait
    jobctl publish backfill.ingest_document --payload - < documents.jsonl
    ```
    """
    waits = WaitMode.PIPELINE if wait_for_pipeline else WaitMode.JOB if wait else None
    options = PublishOptions(
        routing_key=routing_key,
        priority=priority,
        max_attempts=max_attempts,
        delay=parse_optional_duration(delay) or 0,
        expires_in=parse_optional_duration(expires_in),
        key=key,
        wait=waits,
        timeout=seconds_to_wait(timeout, waits=waits is not None),
        as_json=as_json,
        notify=notify,
        tags=tags_of(tags),
    )
    single = None if payload == "-" else read_argument(payload)
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    if notify is not None:
        from switchyard.services.engine.publishing.preparing import check_notify_url

        check_notify_url(notify, settings)
    registry = load_registry(settings, include)
    if single is not None:
        run(_publish_one(settings, registry, options, single))
        return
    from switchyard.cli.engine.jobs.publish_lines import publish_input

    run(publish_input(settings, registry, options))


async def _publish_one(
    settings: Settings, registry: Registry, options: PublishOptions, payload: dict[str, Any]
) -> None:
    await require_binding(settings, registry, options.routing_key)
    async with job_publisher(settings, registry) as (publisher, ledger):
        await publish_one(options, publisher, ledger, payload)
