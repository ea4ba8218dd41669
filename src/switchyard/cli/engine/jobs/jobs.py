"""`jobctl jobs`: list, show and watch jobs of the ledger."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from switchyard.broker.times import format_local
from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.durations import (
    age,
    duration_text,
    now,
)
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    inline_json,
    print_json,
    print_json_line,
    print_rows,
    say,
    styled,
    table,
)
from switchyard.cli.base.shared_options import (
    MAX_LIMIT,
    JobIdArgument,
    LimitOption,
    full_job_id,
)
from switchyard.cli.engine.jobs import action_records, actions, republish
from switchyard.cli.engine.jobs.filter import ChosenJobs, with_job_filter

if TYPE_CHECKING:
    from switchyard.api.models.jobs import JobDetails
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.records.job_actions import JobActionRecord
    from switchyard.services.engine.records.joins import JoinRecord
    from switchyard.services.engine.records.limits import PendingPermit
    from switchyard.services.engine.records.pauses import PauseRecord
    from switchyard.services.engine.records.progress import ProgressRecord
    from switchyard.services.engine.records.results import JobRecord, JobSummary


LONG_SEARCH = 2.0
"""Seconds after which a listing says why it takes so long."""

app = typer.Typer(
    no_args_is_help=True, help="Jobs: list, show, watch, cancel, rerun, move, release, republish."
)


@app.command(name="list")
@with_job_filter
def list_jobs(chosen: ChosenJobs, limit: LimitOption = 50, as_json: JsonOption = False) -> None:
    """List jobs, newest first; all filters must match.

    Examples:

    ```
    jobctl jobs list --state running --worker llm
    jobctl jobs list --type ingest_document --since 1h --limit 200
    jobctl jobs list --source api:0b0f6c1e --since 1h --slower-than 5s
    jobctl jobs list --state dead --error timeout --payload document.id=42
    ```
    """

    async def read(settings: Settings) -> tuple[list[JobSummary], bool]:
        found: list[JobSummary] = []
        cursor, began = None, time.monotonic()
        async with open_ledger(settings) as ledger:
            job_filter = chosen.as_of(ledger.clock.time())
            while True:
                page = await ledger.job_reads.list_jobs(
                    job_filter, limit=limit - len(found), cursor=cursor
                )
                found += page.items
                cursor = page.next_cursor
                if cursor is None or len(found) >= limit:
                    break
                if time.monotonic() - began > LONG_SEARCH:
                    began = math.inf
                    say("No index finds these: searching all jobs. --since or --until shortens it.")
        return found, cursor is not None

    jobs, more = run(read(load_settings()))
    if as_json:
        from switchyard.api.views.jobs import view_job

        print_json([view_job(job) for job in jobs])
        return
    if not jobs:
        say("No jobs.")
        return
    rows = table("ID", "JOB", "STATE", "TRIES", "AGE", "ERROR", flexible=("JOB", "ERROR"))
    for job in jobs:
        add_row(
            rows,
            cell(job.id),
            cell(" ".join([job.routing_key, *tag_texts(job.tags)])),
            styled(job.state) + _running_percent(job),
            f"{job.begun_attempts}/{job.max_attempts}",
            age(job.created_at),
            cell(job.error_message or job.reason),
        )
    console().print(rows)
    if more:
        say(f"The newest {len(jobs)}; more with --limit (at most {MAX_LIMIT}) or a filter.")


@app.command()
def show(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Show a job: payload, result, attempts, error, and the jobs of its pipeline."""
    settings = load_settings()
    if as_json:
        print_json(run(_read_details(settings, job_id)))
        return
    report = run(_read_job(settings, job_id))
    job = report.job
    followers = [each for each in report.pipeline if each.id != job.id]
    _print_job(job, report.join)
    if (wait := report.limit_wait) is not None:
        whose = f" of {wait.key}" if wait.key else ""
        say(
            f"It waits for room in the limit {wait.name}{whose}, since {age(wait.since)}: "
            "`jobctl limits`."
        )
    if (pause := report.pause) is not None:
        why = f": {pause.reason}" if pause.reason else ""
        say(
            f"The pause of {pause}, by {pause.created_by} {age(pause.created_at)} ago, keeps it "
            f"from beginning{why}; {pause.remedy} ends it."
        )
    for act in report.actions:
        say(action_text(act))
    for hint in hints(job):
        say(hint)
    if report.join is not None and report.join.is_stuck and report.dead_ids:
        say(_join_hint(report.join, report.dead_ids))
    if followers:
        echo()
        rows = table("PIPELINE", "JOB", "STATE", "AGE", flexible=("JOB",))
        for each in followers:
            add_row(
                rows,
                cell(each.id),
                cell(each.routing_key),
                styled(each.state),
                age(each.created_at),
            )
        console().print(rows)


@app.command()
def watch(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Follow a job until it ends, with one line per change of state and progress report.

    Exit code 1: the job did not succeed.
    """
    run(_watch(load_settings(), job_id, as_json=as_json))


app.command()(actions.cancel)
app.command()(actions.rerun)
app.command()(actions.move)
app.add_typer(action_records.app, name="actions")
app.command()(republish.release)
app.command()(republish.republish)


async def _watch(settings: Settings, job_id: str, *, as_json: bool) -> None:
    from switchyard.cli.base.waiting import wait_for_end
    from switchyard.services.engine.records.states import State

    def print_change(changed_id: str, **change: object) -> None:
        from switchyard.api.models.jobs import ObservedChange

        line = {"seen_at": time.time(), "job_id": changed_id, **change}
        print_json_line(ObservedChange.model_validate(line))

    def show_change(changed_id: str, state: State) -> None:
        moment = time.time()
        if as_json:
            print_change(changed_id, state=state)
        else:
            clock = time.strftime("%H:%M:%S", time.localtime(moment))
            console().print(f"{clock}  {styled(state)}")

    def show_progress(changed_id: str, progress: ProgressRecord) -> None:
        if as_json:
            print_change(changed_id, progress=progress)
        else:
            at = time.strftime("%H:%M:%S", time.localtime(progress.reported_at))
            console().print(f"{at}  {cell(progress_text(progress))}")

    async with open_ledger(settings) as ledger:
        job_id = await full_job_id(ledger, job_id)
        await ledger.job_reads.require(job_id)
        ends = await wait_for_end(
            ledger, [job_id], on_change=show_change, on_progress=show_progress
        )
        job = await ledger.job_reads.get(job_id)
    if job is not None and ends[job_id] is not State.SUCCEEDED:
        why = f": {job.error_message}" if job.error_message else ""
        raise CommandFailed(f"job {job_id} is {ends[job_id]}{why}")


async def _read_details(settings: Settings, job_id: str) -> JobDetails:
    from switchyard.api.views.jobs import view_job_details
    from switchyard.services.engine.jobs.registry import Registry

    registry = Registry()
    async with open_ledger(settings, registry) as ledger:
        job = await ledger.job_reads.require(await full_job_id(ledger, job_id))
        return await view_job_details(ledger, registry, job)


@dataclass(frozen=True, slots=True)
class JobReport:
    """What the ledger has about a job."""

    job: JobRecord
    pipeline: list[JobSummary]
    """The jobs of its pipeline, itself included."""
    limit_wait: PendingPermit | None
    pause: PauseRecord | None
    """The pause that holds it."""
    actions: list[JobActionRecord]
    """The bulk actions on it."""
    join: JoinRecord | None = None
    dead_ids: Sequence[str] = ()
    """Some dead jobs that it waits for."""


async def _read_job(settings: Settings, job_id: str) -> JobReport:
    from switchyard.api.views.pauses import pause_of
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.records.states import State

    registry = Registry()
    async with open_ledger(settings, registry) as ledger:
        job_id = await full_job_id(ledger, job_id)
        job = await ledger.job_reads.require(job_id)
        job = replace(job, payload=registry.hide_secrets(job.job_type, job.payload))
        pipeline = await ledger.job_reads.pipeline(job.pipeline or job.id)
        report = JobReport(
            job,
            pipeline,
            limit_wait=await ledger.limits.limit_wait(job_id),
            pause=await pause_of(ledger, job),
            actions=await ledger.job_actions.of_job(job_id),
        )
        if not job.joins:
            return report
        dead, _ = await ledger.joins.joined_jobs(job_id, state=State.DEAD, limit=3)
        join = await ledger.joins.join(job_id)
        return replace(report, join=join, dead_ids=[each.job_id for each in dead])


def action_text(act: JobActionRecord) -> str:
    """Describe in one line what a bulk action did to a job."""
    match act.action:
        case "rerun":
            what = f"Rerun as {act.new_job_id}"
        case "move":
            place = act.before or {}
            what = f"Moved from lane {place.get('lane')}, priority {place.get('priority')},"
        case _:
            what = "Cancelled"
    return f"{what} by {act.operation_id}, {age(act.acted_at)} ago."


def tag_texts(tags: Mapping[str, str]) -> list[str]:
    """Write tags as NAME=VALUE."""
    return [f"{name}={value}" for name, value in tags.items()]


def progress_text(progress: ProgressRecord) -> str:
    """Describe progress, as in `40 %, page 12 of 30`."""
    share = "" if progress.fraction is None else _percent(progress.fraction)
    return ", ".join(part for part in (share, progress.note) if part)


def _percent(fraction: float) -> str:
    return f"{int(fraction * 100)} %"  # rounded down: 100 % only at the end


def _describe_join(join: JoinRecord) -> str:
    """Describe in one line the progress of a join."""
    parts = [f"{join.total - join.open - join.dead:,} of {join.total:,} jobs have ended"]
    parts += [f"{join.dead:,} are dead"] if join.dead else []
    parts += ["more may come"] if join.held else []
    choice = {
        "wait": "waits until those are redriven",
        "go_on": "goes on without the dead",
        "fail": "is dead when one of them is",
    }
    return f"{', '.join(parts)}; {choice[join.when_dead]}"


def _join_hint(join: JoinRecord, dead_ids: Sequence[str]) -> str:
    """Return what to do about a join that waits for dead jobs alone."""
    ids = ", ".join(dead_ids) + (", …" if join.dead > len(dead_ids) else "")
    return (
        f"It waits for dead jobs ({ids}): `jobctl dead redrive {dead_ids[0]}`, or without them: "
        f"`jobctl jobs release {join.id}`."
    )


def _running_percent(job: JobSummary) -> str:
    """Return the percentage to show behind the state of a running job; empty if it reports none."""
    progress = job.progress
    if progress is None or progress.fraction is None or job.state != "running":
        return ""
    return f" {_percent(progress.fraction)}"


def _print_job(job: JobRecord, join: JoinRecord | None) -> None:
    def text(value: object) -> str:
        return "" if value is None else inline_json(value)

    progress = job.progress
    took = job.finished_at - job.started_at if job.finished_at and job.started_at else None
    waited = job.started_at - job.queued_at if job.queued_at and job.started_at else None
    print_rows(
        [
            ("id", job.id),
            ("job", job.routing_key),
            ("state", job.state + (f" ({job.reason})" if job.reason else "")),
            ("tries", f"{job.begun_attempts} of {job.max_attempts}"),
            ("redriven", pluralize(job.redrives, "time") if job.redrives else ""),
            ("crashes", str(job.crashes or "")),
            ("payload of version", _payload_version(job)),
            ("priority", str(job.priority)),
            ("source", job.source),
            ("tags", ", ".join(tag_texts(job.tags))),
            ("parent", job.parent_id or ""),
            ("rerun of", job.rerun_of or ""),
            ("waits for", _describe_join(join) if join and job.state == "joining" else ""),
            ("joined by", job.join_id or ""),
            ("made", _describe_time(job.created_at)),
            ("runs at", _describe_time(job.run_at)),
            ("expires", _describe_time(job.expires_at)),
            ("started", _describe_time(job.started_at) + _label_duration(", waited", waited)),
            ("finished", _describe_time(job.finished_at) + _label_duration(", took", took)),
            ("cancel asked", _describe_time(job.cancel_asked_at)),
            ("progress", "" if progress is None else progress_text(progress)),
            ("reported", "" if progress is None else _describe_time(progress.reported_at)),
            ("check-point", _describe_time(job.checkpoint_at)),
            ("worker", job.worker_id or ""),
            ("key", job.idempotency_key or ""),
            ("trace", job.trace_id or ""),
            ("error", f"{job.error_type}: {job.error_message}" if job.error_type else ""),
            ("payload", text(job.payload)),
            ("result", text(job.result)),
        ]
    )
    if job.timeline:
        echo()
        rows = table("ATTEMPT", "ENDED", "AGO", "WORKER", "ERROR", flexible=("WORKER", "ERROR"))
        for attempt in job.timeline:
            number = f"{attempt.attempt}" + (
                f" (redrive {attempt.redrive})" if attempt.redrive else ""
            )
            error = f"{attempt.error_type}: {attempt.error_message}" if attempt.error_type else ""
            add_row(
                rows,
                number,
                attempt.outcome,
                age(attempt.finished_at),
                cell(attempt.worker_id),
                cell(error),
            )
        console().print(rows)


def hints(job: JobRecord) -> list[str]:
    """Return hints for a job: where to find its tracebacks, and what can be done."""
    lines = []
    if job.state == "dead":
        lines.append(f"Traceback, and how to go on: `jobctl dead show {job.id}`.")
    if job.reason == "unroutable":
        lines.append(
            f"No queue is bound for {job.routing_key}: `jobctl topology apply`, then "
            f"`jobctl dead redrive {job.id}`."
        )
    if job.reason == "refused":
        lines.append(
            "The broker never takes its message: make it smaller, or raise `max_message_size` of "
            f"the broker, then `jobctl dead redrive {job.id} --from-ledger`."
        )
    if job.reason == "invalid_payload":
        lines.append(
            "The worker did not accept its payload. Was it older than the publisher? Then start "
            f"the new one, and `jobctl dead redrive {job.id}`."
        )
    workers = {
        each.worker_id: None
        for each in job.timeline
        if each.outcome == "retry" and each.error_type and each.worker_id
    }
    if workers:
        lines.append(
            f"Tracebacks of retries are in the log of {', '.join(workers)}, in lines with this id."
        )
    return lines


def _label_duration(label: str, seconds: float | None) -> str:
    return "" if seconds is None or seconds < 0 else f"{label} {duration_text(seconds)}"


def _describe_time(moment: float | None) -> str:
    if moment is None:
        return ""
    past = moment <= now()
    return f"{format_local(moment)} ({age(moment)}{' ago' if past else ''})"


def _payload_version(job: JobRecord) -> str:
    """Return the version of a job's payload, where it is not the first."""
    version = job.envelope.get("metadata", {}).get("payload_version", 1)
    return "" if version == 1 else str(version)
