"""`jobctl publish`: one job, or one for each line of standard input."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
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
from switchyard.cli.base.durations import DURATION_HELP, optional_duration
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import JsonOption, print_json
from switchyard.cli.base.payloads import read_argument

if TYPE_CHECKING:
    from switchyard.services.jobs.registry import Registry
    from switchyard.services.ledger import Ledger
    from switchyard.services.publishing.publisher import (
        JobPublisher,
        JobRequest,
        Published,
    )
    from switchyard.services.settings import Settings

SOURCE = "jobctl"


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for every job of one call."""

    routing_key: str
    priority: int | None
    max_attempts: int | None
    delay: float
    expires_in: float | None
    key: str | None
    wait: bool
    timeout: float | None
    as_json: bool

    def request(self, payload: dict[str, Any], line: int | None = None) -> JobRequest:
        """The request for one payload. Each line of an input has a key of its own."""
        from switchyard.broker.message import now
        from switchyard.services.publishing.publisher import JobRequest

        key = self.key if self.key is None or line is None else f"{self.key}/{line}"
        return JobRequest(
            routing_key=self.routing_key,
            payload=payload,
            priority=self.priority,
            max_attempts=self.max_attempts,
            source=SOURCE,
            delay=self.delay,
            expires_at=None if self.expires_in is None else now() + timedelta(0, self.expires_in),
            idempotency_key=key,
        )


def publish(
    routing_key: Annotated[
        str, typer.Argument(metavar="ROUTING_KEY", help="<lane>.<job_type>: hot.ingest_document")
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
        bool, typer.Option("--wait", help="Wait for the end; print the result.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --wait: fail after so long.")
    ] = None,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish jobs: checked, recorded in the ledger, and confirmed by the broker.

    Prints each job's id. Exit code 1 tells that a job was refused, or (with --wait) that it died.
    """
    if timeout is not None and not wait:
        raise WrongUsage("--timeout is for --wait: give both, or neither")
    options = Options(
        routing_key=routing_key,
        priority=priority,
        max_attempts=max_attempts,
        delay=optional_duration(delay) or 0,
        expires_in=optional_duration(expires_in),
        key=key,
        wait=wait,
        timeout=optional_duration(timeout),
        as_json=as_json,
    )
    single = None if payload == "-" else read_argument(payload)
    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    if single is not None:
        run(_publish_one(settings, registry, options, single))
        return
    from switchyard.cli.jobs.publish_lines import publish_input

    run(publish_input(settings, registry, options))


@asynccontextmanager
async def job_publisher(
    settings: Settings, registry: Registry
) -> AsyncIterator[tuple[JobPublisher, Ledger]]:
    """A publisher with its ledger, closed at the end."""
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.publishing.publisher import JobPublisher

    async with open_ledger(settings) as ledger, Publisher(settings, name="jobctl") as publisher:
        yield JobPublisher(registry, ledger, publisher), ledger


async def _publish_one(
    settings: Settings, registry: Registry, options: Options, payload: dict[str, Any]
) -> None:
    async with job_publisher(settings, registry) as (publisher, ledger):
        published = await publisher.publish(options.request(payload))
        await report_one(options, ledger, published)


async def report_one(options: Options, ledger: Ledger, published: Published) -> None:
    """Print what became of a single job. Raises CommandFailed when it was waited for and died."""
    from switchyard.cli.base.waiting import wait_for_end
    from switchyard.services.records import State

    shown: dict[str, Any] = {
        "job_id": published.job_id,
        "routing_key": published.routing_key,
        "state": published.state,
        "duplicate": published.duplicate,
    }
    if not options.wait:
        if options.as_json:
            print_json(shown)
        else:
            typer.echo(published.job_id)
        return
    await wait_for_end(ledger, [published.job_id], timeout=options.timeout)
    record = await ledger.get(published.job_id)
    if record is None:
        raise CommandFailed(f"the ledger has lost job {published.job_id}")
    if options.as_json:
        failed = {"error_type": record.error_type, "error_message": record.error_message}
        print_json(
            shown
            | {"state": record.state, "result": record.result, "reason": record.reason}
            | failed
        )
    elif record.state is State.SUCCEEDED:
        print_json(record.result or {})
    if record.state is not State.SUCCEEDED:
        why = f": {record.error_message}" if record.error_message else ""
        reason = f" ({record.reason})" if record.reason else ""
        raise CommandFailed(
            f"job {record.id} is {record.state}{reason}{why}; see `jobctl jobs show {record.id}`"
        )
