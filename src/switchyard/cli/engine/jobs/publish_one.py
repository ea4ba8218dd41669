"""Publish one job from the command line: options, output, and the wait for its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.common import open_ledger
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, print_json, say

if TYPE_CHECKING:
    from switchyard.broker.errors import PublishError
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.preparing import JobRequest
    from switchyard.services.engine.publishing.publisher import JobPublisher, Published
    from switchyard.services.engine.records.results import JobRecord, JobSummary

SOURCE = "jobctl"


class WaitMode(Enum):
    """What `--wait` waits for."""

    JOB = "job"
    PIPELINE = "pipeline"
    """The job, and all jobs that follow from it."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options that hold for every job of one call."""

    routing_key: str
    priority: int | None
    max_attempts: int | None
    delay: float
    expires_in: float | None
    key: str | None
    wait: WaitMode | None
    timeout: float | None
    as_json: bool
    notify: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def request(
        self, payload: dict[str, Any], now: datetime, line: int | None = None
    ) -> JobRequest:
        """Make the request for one payload. Each line of an input gets an idempotency key of its
        own; the time to expiry counts from `now`, the ledger's time."""
        from switchyard.services.engine.publishing.preparing import JobRequest

        key = self.key if self.key is None or line is None else f"{self.key}/{line}"
        return JobRequest(
            routing_key=self.routing_key,
            payload=payload,
            priority=self.priority,
            max_attempts=self.max_attempts,
            source=SOURCE,
            delay=self.delay,
            expires_at=None if self.expires_in is None else now + timedelta(0, self.expires_in),
            idempotency_key=key,
            notify_url=self.notify,
            tags=self.tags,
        )


@asynccontextmanager
async def job_publisher(
    settings: Settings, registry: Registry
) -> AsyncIterator[tuple[JobPublisher, Ledger]]:
    """Open a publisher and its ledger; both are closed at the end."""
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.common.tracing import tracing
    from switchyard.services.engine.identity.broker import system_guard
    from switchyard.services.engine.monitoring.lane_pressure import LanePressure
    from switchyard.services.engine.publishing.publisher import JobPublisher

    with tracing("jobctl"):
        async with (
            open_ledger(settings, registry) as ledger,
            Publisher(settings, name="jobctl", guard=system_guard(settings, ledger)) as publisher,
            LanePressure(settings, registry, ledger=ledger) as pressure,
        ):
            fair_from = settings.fair_from
            yield (
                JobPublisher(registry, ledger, publisher, pressure=pressure, fair_from=fair_from),
                ledger,
            )


def describe_refusal(error: PublishError) -> str:
    """Describe a job that the broker did not accept: where it is now, and the command to go on
    with."""
    from switchyard.broker.errors import Blocked, LaneFull, NeverTaken, NotPermitted, Unroutable

    if isinstance(error, LaneFull | Blocked):
        return str(error)  # the error says it itself
    if isinstance(error, NeverTaken | NotPermitted):
        return f"{error}; nothing was kept of the job"
    when = "then" if isinstance(error, Unroutable) else "when the broker is back"
    return f"{error}; nothing was kept of the job: publish it again {when}"


async def publish_one(
    options: PublishOptions, publisher: JobPublisher, ledger: Ledger, payload: dict[str, Any]
) -> None:
    """Publish a single job and print the result. Raises CommandFailed when the broker did not
    accept it, or when it was waited for and did not succeed."""
    from switchyard.broker.errors import LaneFull, PublishError

    job = await publisher.prepare(options.request(payload, publisher.clock.now()))
    try:
        published = await publisher.publish_one(job)
    except PublishError as error:
        text = describe_refusal(error)
        if isinstance(error, LaneFull) and error.dead_lettered:
            text += f"; when there is room: `jobctl dead redrive {job.message.job_id}`"
        raise CommandFailed(text) from error
    _warn_pending(published)
    warn_slow(published)
    if options.wait is None:
        if options.as_json:
            from switchyard.api.views.jobs import view_accepted_job

            print_json(view_accepted_job(published))
        else:
            echo(published.job_id)
    elif options.wait is WaitMode.JOB:
        await _wait_for_job(options, ledger, published)
    else:
        await _wait_for_pipeline(options, ledger, published)


def _warn_pending(published: Published) -> None:
    from switchyard.services.engine.records.states import State

    if published.state is State.PAUSED:
        say(
            f"{published.job_id} is held by a pause (`jobctl pauses`), and is published when that "
            "ends"
        )
    if published.state is State.PENDING:
        say(
            f"{published.job_id} is recorded (pending), but the broker has not confirmed it: don't "
            "publish it again, `jobctl scheduler` does when the broker takes jobs "
            f"(`jobctl jobs watch {published.job_id}`)"
        )


def warn_slow(published: Published) -> None:
    """Warn where the job's queue is fuller than it should be."""
    if published.is_slow:
        say(
            f"the queue of {published.routing_key} is slow: publish less for now "
            "(`jobctl lanes --watch`); when it is full, jobs are refused"
        )


async def _wait_for_job(options: PublishOptions, ledger: Ledger, published: Published) -> None:
    from switchyard.cli.base.waiting import wait_for_end
    from switchyard.services.engine.records.states import State

    await wait_for_end(ledger, [published.job_id], timeout=options.timeout)
    record = await _read_record(ledger, published)
    if options.as_json:
        from switchyard.api.views.jobs import view_ended_job

        print_json(view_ended_job(published, record, None))
    elif record.state is State.SUCCEEDED:
        print_json(record.result or {})
    if record.state is not State.SUCCEEDED:
        raise CommandFailed(describe_failure(record))


async def _wait_for_pipeline(options: PublishOptions, ledger: Ledger, published: Published) -> None:
    from switchyard.cli.base.waiting import wait_for_pipelines
    from switchyard.services.engine.records.states import State

    pipelines = await wait_for_pipelines(ledger, [published.job_id], timeout=options.timeout)
    jobs = pipelines[published.job_id]
    if options.as_json:
        from switchyard.api.views.jobs import view_ended_job

        print_json(view_ended_job(published, await _read_record(ledger, published), jobs[1:]))
    else:
        for each in jobs:
            echo(f"{each.id} {each.job_type} {each.state}")
    failed = [each for each in jobs if each.state is not State.SUCCEEDED]
    if failed:
        more = f"; {len(failed) - 1} more did not succeed" if len(failed) > 1 else ""
        raise CommandFailed(describe_failure(failed[0]) + more)


async def _read_record(ledger: Ledger, published: Published) -> JobRecord:
    record = await ledger.job_reads.get(published.job_id)
    if record is None:
        raise CommandFailed(f"the ledger has lost job {published.job_id}")
    return record


def describe_failure(job: JobSummary) -> str:
    """Return why a job has ended without success, and the command to go on with."""
    why = f": {job.error_message}" if job.error_message else ""
    reason = f" ({job.reason})" if job.reason else ""
    text = f"job {job.id} is {job.state}{reason}{why}; "
    if job.reason == "unroutable":
        return text + (
            f"no queue is bound for {job.routing_key}: `jobctl topology apply`, then "
            f"`jobctl dead redrive {job.id}`"
        )
    if job.reason == "refused":
        return text + f"once the broker takes it: `jobctl dead redrive {job.id} --from-ledger`"
    if job.reason == "invalid_payload":
        return text + (
            "was the worker older than the publisher? Then start the new one, and "
            f"`jobctl dead redrive {job.id}`"
        )
    return text + f"see `jobctl jobs show {job.id}`"
