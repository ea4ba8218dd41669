"""`jobctl publish --payload -`: a job for each line, published in batches as the lines come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from switchyard.broker.wording import pluralize
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import echo, print_json_line, say
from switchyard.cli.base.payloads import (
    InputLine,
    StandardInput,
    parse_lines,
    parse_whole_document,
    renumber_lines,
)
from switchyard.cli.base.waiting import wait_for_end, wait_for_pipelines
from switchyard.cli.engine.jobs.publish_one import (
    PublishOptions,
    WaitMode,
    describe_refusal,
    job_publisher,
    publish_one,
    warn_slow,
)
from switchyard.cli.engine.jobs.queue_binding import require_binding

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import JobPublisher, PublishOutcome
    from switchyard.services.engine.records.requests import NewJob
    from switchyard.services.engine.records.states import State

MAX_LISTED_ERRORS = 20
"""Lines with errors that are reported one by one; the others are counted."""


@dataclass(slots=True)
class PublishSummary:
    """Results of the lines so far."""

    ids: dict[str, int] = field(default_factory=dict)
    """Line of each job that was published, now or earlier, by job id."""
    published: int = 0
    duplicates: int = 0
    pending: int = 0
    """Jobs among the published ones that are recorded, but not confirmed by the broker."""
    failed: int = 0
    stopped_by: str | None = None
    """Why the remaining lines were not published."""
    last_line: int = 0
    warned_slow: bool = False


async def publish_input(settings: Settings, registry: Registry, options: PublishOptions) -> None:
    """Publish the lines of standard input. Raises CommandFailed unless all were accepted."""
    source = StandardInput()
    first: list[tuple[int, str]] = []
    while not first and not source.at_end:
        first = await asyncio.to_thread(source.read, settings.publish_window)
    await require_binding(settings, registry, options.routing_key)
    async with job_publisher(settings, registry) as (publisher, ledger):
        first_line = next((line for line in parse_lines(first)), None)
        if first_line is None and source.at_end:
            raise WrongUsage("standard input is empty: give JSON, or JSON Lines")
        if first_line is not None and first_line.payload is None:
            rest = await asyncio.to_thread(source.read_all)
            document = parse_whole_document(first, rest)
            if document is not None:
                await publish_one(options, publisher, ledger, document)
                return
            first = renumber_lines(first, rest)
        summary = PublishSummary()
        started = time.monotonic()
        async for lines in _batches(source, first, settings.publish_window):
            await _publish_batch(publisher, options, lines, summary)
            if summary.stopped_by:
                break
        _report(summary, time.monotonic() - started)
        if options.wait and summary.ids:
            await _wait(ledger, options, summary)
    if summary.failed or summary.stopped_by:
        raise CommandFailed(_describe_failure(summary))


async def _batches(
    source: StandardInput, first: list[tuple[int, str]], size: int
) -> AsyncIterator[list[tuple[int, str]]]:
    for start in range(0, len(first), size):
        yield first[start : start + size]
    while not source.at_end:
        # In a thread: a slow writer must not keep the connection from its heartbeats.
        lines = await asyncio.to_thread(source.read, size)
        if lines:
            yield lines


async def _publish_batch(
    publisher: JobPublisher,
    options: PublishOptions,
    lines: list[tuple[int, str]],
    summary: PublishSummary,
) -> None:
    from switchyard.services.engine.jobs.registry import InvalidPayload
    from switchyard.services.engine.publishing.preparing import InvalidJob

    valid: list[tuple[InputLine, NewJob]] = []
    for line in parse_lines(lines):
        summary.last_line = line.number
        if line.payload is None:
            _report_failed_line(options, summary, line.number, line.error)
            continue
        try:
            job = await publisher.prepare(
                options.request(line.payload, publisher.clock.now(), line.number)
            )
        except (InvalidPayload, InvalidJob) as error:
            # A wrong routing key is wrong for every line: it is not an error of this line alone.
            if isinstance(error, InvalidJob):
                raise
            _report_failed_line(options, summary, line.number, str(error))
        else:
            valid.append((line, job))
    outcomes = await publisher.publish_prepared([job for _, job in valid])
    _count_outcomes(options, summary, [line.number for line, _ in valid], outcomes)


def _count_outcomes(
    options: PublishOptions,
    summary: PublishSummary,
    numbers: Sequence[int],
    outcomes: Sequence[PublishOutcome],
) -> None:
    from switchyard.broker.errors import NeverTaken, NotPermitted, PublishError
    from switchyard.services.engine.publishing.publisher import Published
    from switchyard.services.engine.records.states import State

    for number, outcome in zip(numbers, outcomes, strict=True):
        if isinstance(outcome, Published):
            summary.ids[outcome.job_id] = number
            if outcome.is_slow and not summary.warned_slow:
                summary.warned_slow = True
                warn_slow(outcome)
            summary.duplicates += outcome.duplicate
            summary.published += not outcome.duplicate
            summary.pending += outcome.state is State.PENDING
            if options.as_json:
                from switchyard.api.views.jobs import view_accepted_job

                accepted = view_accepted_job(outcome).model_dump(mode="json")
                print_json_line({"line": number, **accepted})
            elif options.wait is None:
                echo(outcome.job_id)
            continue
        if isinstance(outcome, PublishError):
            _report_failed_line(options, summary, number, describe_refusal(outcome))
            if not isinstance(outcome, NeverTaken | NotPermitted):
                # What the broker refuses now, it would refuse for the following lines, too.
                summary.stopped_by = str(outcome)
        else:
            _report_failed_line(options, summary, number, str(outcome))


def _report_failed_line(
    options: PublishOptions, summary: PublishSummary, number: int, why: str
) -> None:
    summary.failed += 1
    if options.as_json:
        print_json_line({"line": number, "error": why})
    if summary.failed <= MAX_LISTED_ERRORS:
        say(f"line {number}: {why}")


def _report(summary: PublishSummary, seconds: float) -> None:
    shows_rate = summary.published and seconds > 0.5
    rate = f", {summary.published / seconds:.0f} a second" if shows_rate else ""
    known = f"; {summary.duplicates} were known already" if summary.duplicates else ""
    say(f"{summary.published} published{rate}{known}")
    if summary.pending:
        say(
            f"{summary.pending} of them are recorded (pending), but the broker has not confirmed "
            "them: `jobctl scheduler` publishes them when it takes jobs"
        )


def _describe_failure(summary: PublishSummary) -> str:
    text = f"{summary.failed} lines were not published"
    if summary.failed > MAX_LISTED_ERRORS:
        text += f" (the first {MAX_LISTED_ERRORS} are named above)"
    if summary.stopped_by:
        text += (
            f"; stopped after line {summary.last_line}: {summary.stopped_by}. "
            "With --key you can publish the same input again, and nothing is published twice"
        )
    return text


async def _wait(ledger: Ledger, options: PublishOptions, summary: PublishSummary) -> None:
    from switchyard.services.engine.records.states import State

    if options.wait is WaitMode.PIPELINE:
        states = await _wait_for_pipelines(ledger, options, summary)
    else:
        states = await wait_for_end(ledger, list(summary.ids), timeout=options.timeout)
    succeeded = sum(1 for state in states.values() if state is State.SUCCEEDED)
    say(f"{succeeded} of {len(states)} succeeded")
    for job_id, state in states.items():
        if options.as_json:
            print_json_line({"line": summary.ids[job_id], "job_id": job_id, "state": state})
        else:
            echo(f"{job_id} {state}")
    if succeeded < len(states):
        raise CommandFailed(
            f"{pluralize(len(states) - succeeded, 'job')} did not succeed: "
            "`jobctl dead list` tells why"
        )


async def _wait_for_pipelines(
    ledger: Ledger, options: PublishOptions, summary: PublishSummary
) -> dict[str, State]:
    """Return how each line's pipeline has ended: the state of the first of its jobs that did not
    succeed."""
    from switchyard.services.engine.records.states import State

    pipelines = await wait_for_pipelines(ledger, list(summary.ids), timeout=options.timeout)
    return {
        job_id: next(
            (each.state for each in pipelines[job_id] if each.state is not State.SUCCEEDED),
            State.SUCCEEDED,
        )
        for job_id in summary.ids
    }
